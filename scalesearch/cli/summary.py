"""What a study has established, read from its storage and said in the ways that commands need."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console

from scalesearch.cli.retune_summary import RetuneSummary
from scalesearch.core.budget import Budget, Spent, spent
from scalesearch.core.recommend import Findings, findings
from scalesearch.core.results import Objective, TrialResult
from scalesearch.core.step_time_model import step_seconds_of
from scalesearch.definition.profile_file import profile_from_json
from scalesearch.report.as_json import study_json
from scalesearch.report.markdown import note
from scalesearch.report.say import say
from scalesearch.report.terminal import outcome_counts, print_findings, spending
from scalesearch.search.storage import StudyStore
from scalesearch.study.account import PROFILE_DEVICE_SECONDS


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a study established, with what is needed to say it in words."""

    name: str
    workload: str
    optimizer: str
    replicas: int
    train_examples: int
    budget: Budget
    spent: Spent
    findings: Findings
    retune: RetuneSummary | None = None

    @staticmethod
    def exists(store: StudyStore) -> bool:
        """Whether the study was made by scalesearch and has been started."""
        return store.attribute("context") is not None

    @staticmethod
    def of(store: StudyStore) -> Summary:
        context = store.attribute("context")
        results = store.results()
        # Studies from before there were two rules went by the first crossing.
        objective = Objective(**{"crossing": "first", **context["objective"], "target": store.attribute("target")})
        step_seconds = _step_seconds(store, results, replicas=context["replicas"])
        found = findings(
            results,
            objective,
            leader=store.leader(),
            curve_sizes=context.get("curve_sizes", ()),
            points=store.curve(),
            edges=store.edges(),
            step_seconds=step_seconds,
            recommends_accumulated=context.get("recommends_accumulated", True),
        )
        recommended = found.recommendation.parameters if found.recommendation else None
        return Summary(
            name=store.name,
            workload=context["workload"],
            optimizer=context["optimizer"],
            replicas=context["replicas"],
            train_examples=context["train_examples"],
            budget=Budget(**context["budget"]),
            spent=spent(
                results,
                wall_clock_seconds=store.wall_clock_seconds(),
                train_examples=context["train_examples"],
                profile_device_seconds=store.attribute(PROFILE_DEVICE_SECONDS) or 0.0,
            ),
            findings=found,
            retune=RetuneSummary.of(store, results, objective, recommended=recommended, step_seconds=step_seconds),
        )

    def show(self, *, as_json: bool) -> None:
        """Print it on stdout."""
        if as_json:
            click.echo(json.dumps(self.as_json(), allow_nan=False))
            return
        console = Console()
        print_findings(
            console,
            self.findings,
            replicas=self.replicas,
            train_examples=self.train_examples,
            optimizer=self.optimizer,
        )
        for line in self.retune.lines() if self.retune else ():
            say(console, line)
        say(console, f"Trials: {outcome_counts(self.findings.outcomes) or 'none'}")
        say(console, f"Spent:  {spending(self.budget, self.spent)}")

    def as_json(self) -> dict[str, Any]:
        """It as one JSON object."""
        of_study = study_json(
            self.findings,
            name=self.name,
            workload=self.workload,
            replicas=self.replicas,
            budget=self.budget,
            spent=self.spent,
        )
        return of_study | (self.retune.as_json() if self.retune else {})

    def note(self) -> str:
        """It as a Markdown note."""
        of_study = note(
            self.findings,
            replicas=self.replicas,
            train_examples=self.train_examples,
            optimizer=self.optimizer,
            budget=self.budget,
            spent=self.spent,
        )
        return "\n\n".join([of_study, *(self.retune.lines() if self.retune else ())])


def _step_seconds(store: StudyStore, results: Sequence[TrialResult], *, replicas: int) -> Callable[[int], float] | None:
    """The profiled seconds per step that the study compares costs in."""
    kept = store.attribute("profile")
    if kept is None or not results:
        return None
    profile = profile_from_json(kept, source=f"the profile of {store.name}")
    micro_batches = {r.parameters.global_batch_size: r.parameters.accumulation for r in results}
    return step_seconds_of(profile, replicas=replicas, micro_batches=lambda size: micro_batches.get(size, 1))
