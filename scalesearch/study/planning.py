"""What a study asks of its search: the planner, whether a trial can still win, and what is believed of the leaders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from scalesearch.core.curve_evidence import Evidence
from scalesearch.core.curve_planner import CurvePlanner, sizes_of
from scalesearch.core.edges import Limits, edges_of
from scalesearch.core.memory import Memory
from scalesearch.core.planner import Planner
from scalesearch.core.proposal import Proposal
from scalesearch.core.recommend import Findings, findings
from scalesearch.core.results import Objective, Outcome
from scalesearch.core.retune import AnyPlanner, RetunePlanner, WarmStart
from scalesearch.core.stopping import awaits_confirmation
from scalesearch.core.surrogate.belief import Belief
from scalesearch.definition import ResolvedStudy
from scalesearch.search.sampler import SamplerName
from scalesearch.search.storage import StudyStore
from scalesearch.study.running import RunningTrial


class Planning:
    """The search of one study, whose beliefs it keeps in the study's storage.

    `confirming` says everywhere whether the last part of the budget has begun, in which leaders are only repeated.
    """

    def __init__(
        self,
        resolved: ResolvedStudy,
        store: StudyStore,
        *,
        sampler_name: SamplerName,
        seed: int,
        step_seconds: Callable[[int], float] | None = None,
        warm_start: WarmStart | None = None,
    ) -> None:
        self._resolved = resolved
        self._store = store
        self._sampler_name = sampler_name
        self._seed = seed
        self._step_seconds = step_seconds
        self._warm_start = warm_start
        self._belief = Memory[Belief]()
        self._evidence = Memory[Evidence]()

    @property
    def objective(self) -> Objective:
        """The objective; its target is None while the baseline that sets it has not been run."""
        target = self._resolved.objective.target
        return replace(self._resolved.objective, target=self._store.attribute("target") if target is None else target)

    def planner(self, *, confirming: bool) -> AnyPlanner:
        """What proposes trials by what is known of scaling."""
        if self._warm_start is not None:
            return RetunePlanner(
                space=self._resolved.space,
                objective=self.objective,
                max_examples=self._resolved.max_examples,
                start=self._warm_start,
                step_seconds=self._step_seconds,
                seed=self._seed,
                confirming=confirming,
                memory=self._belief,
            )
        if self._resolved.aim == "curve":
            return CurvePlanner(
                space=self._resolved.space,
                objective=self.objective,
                max_examples=self._resolved.max_examples,
                first_guess=self._resolved.baseline,
                step_seconds=self._step_seconds,
                seed=self._seed,
                confirming=confirming,
                memory=self._evidence,
            )
        return Planner(
            space=self._resolved.space,
            objective=self.objective,
            max_examples=self._resolved.max_examples,
            first_guess=self._resolved.baseline,
            step_seconds=self._step_seconds,
            limits=self._limits,
            seed=self._seed,
            confirming=confirming,
            memory=self._belief,
        )

    def is_settled(self, *, confirming: bool) -> bool:
        """Whether the search expects nothing of another trial."""
        if self._sampler_name != "scaling" or self.objective.target is None:
            return False
        return self.planner(confirming=confirming).is_settled(self._store.results())

    def why_it_cannot_win(self, running: RunningTrial) -> tuple[Outcome, str] | None:
        """Outcome and reason if the last measurement leaves the running trial no chance, else None."""
        if running.trial.is_baseline or running.objective.minimize == "metric":
            return None
        if awaits_confirmation(running.measurements, running.objective):
            return None
        if self._sampler_name == "scaling":
            return self._why_planner_stops(running)
        so_far = running.progress
        if self._store.can_no_longer_win(so_far):
            return Outcome.CAPPED, f"{so_far:,.4g} {running.objective.minimize} is more than the best trial needed"
        return None

    def _why_planner_stops(self, running: RunningTrial) -> tuple[Outcome, str] | None:
        """Capped trials of the planner: by the cap that it gave them, or because their curve misses the target."""
        trial, results = running.trial, self._store.results()
        planner = running.planner
        per_step = planner.cost_per_step(results)(trial.parameters.global_batch_size)
        proposal = Proposal(trial.parameters, cap=trial.cap, why=trial.why)
        if trial.cap is not None and running.measurements[-1].step * per_step > trial.cap:
            return Outcome.CAPPED, f"it had its share ({trial.why})"
        if planner.should_stop(running.measurements, proposal, results):
            running.ruled_out_steps = trial.cap / per_step if trial.cap is not None else None
            return Outcome.CAPPED, "its learning curve, carried on, misses the target"
        return None

    def keep_beliefs(self, *, confirming: bool) -> None:
        """Keep what is believed after a trial: the leaders, and the edges of the space that they lie at."""
        if self._sampler_name == "scaling" and self.objective.target is not None:
            planner, results = self.planner(confirming=confirming), self._store.results()
            self._store.keep_leader(planner.recommend(results))
            if isinstance(planner, CurvePlanner):
                self._store.keep_curve(planner.curve(results))
            if isinstance(planner, RetunePlanner):
                rules = (rule.parameters for rule in planner.start.rules)
                self._store.keep("expected_costs_of_rules", [planner.expected_cost(p, results) for p in rules])
        self._store.keep_edges(self._edges())

    def _edges(self) -> list[str]:
        """Which edges of the space the recommendation lies at; a curve has its batch sizes given."""
        recommended = self.findings().recommendation
        if recommended is None or self._resolved.aim == "curve":
            return []
        edges = edges_of(
            self._resolved.space,
            recommended.parameters,
            self._store.results(),
            objective=self.objective,
            limits=self._limits,
            widens=self._sampler_name == "scaling" and self._warm_start is None,
        )
        return [edge.sentence for edge in edges]

    @property
    def _limits(self) -> Limits:
        return Limits(train_examples=self._resolved.train_examples, max_examples=self._resolved.max_examples)

    def findings(self) -> Findings:
        """What the study has found so far."""
        return findings(
            self._store.results(),
            self.objective,
            leader=self._store.leader(),
            curve_sizes=sizes_of(self._resolved.space) if self._resolved.aim == "curve" else (),
            points=self._store.curve(),
            edges=self._store.edges(),
            step_seconds=self._step_seconds,
            recommends_accumulated=self._resolved.space.recommends_accumulated,
        )
