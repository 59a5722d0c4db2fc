"""What a study may spend and what it has spent. Everything counts: capped, diverged and crashed trials too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from scalesearch.core.results import Cost, Measurement, Outcome, TrialResult


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Upper limits; None is no limit. The first to run out ends the study."""

    examples: float | None = None
    epochs: float | None = None
    device_seconds: float | None = None
    wall_clock_seconds: float | None = None
    trials: int | None = None

    def limits(self) -> dict[str, float]:
        """The limits that are set, by unit."""
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) is not None}


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What was spent, in every unit. Examples are training examples; device seconds count each replica."""

    examples: int = 0
    epochs: float = 0.0
    device_seconds: float = 0.0
    wall_clock_seconds: float = 0.0
    trials: int = 0


def spent(
    finished: Iterable[Cost | TrialResult],
    *,
    in_flight: Iterable[Cost] = (),
    wall_clock_seconds: float,
    train_examples: int,
    profile_device_seconds: float = 0.0,
) -> Spent:
    """The sum over finished trials, those in flight, and the profile that the study began with.

    An interrupted trial and those that continue it are one trial, which counts once it is over or in flight again.
    """
    finished, in_flight = list(finished), list(in_flight)
    costs = [c.cost if isinstance(c, TrialResult) else c for c in (*finished, *in_flight)]
    interrupted = sum(isinstance(c, TrialResult) and c.outcome is Outcome.INTERRUPTED for c in finished)
    examples = sum(c.examples for c in costs)
    return Spent(
        examples=examples,
        epochs=examples / train_examples,
        device_seconds=sum(c.device_seconds for c in costs) + profile_device_seconds,
        wall_clock_seconds=wall_clock_seconds,
        trials=len(costs) - interrupted,
    )


def measured_cost(measurements: Sequence[Measurement], *, shared_steps: int, replicas: int) -> Cost:
    """What a trial is known to have cost by its measurements, without what it shares with another one."""
    if not measurements:
        return Cost()
    last = measurements[-1]
    shared = next((m for m in measurements if m.step == shared_steps > 0), None)
    return Cost(
        examples=last.examples - (shared.examples if shared else 0),
        device_seconds=(last.elapsed_seconds - (shared.elapsed_seconds if shared else 0.0)) * replicas,
    )


def unit_that_forbids_a_trial(budget: Budget, so_far: Spent) -> str | None:
    """The unit of which nothing is left, so that no further trial may start, or None."""
    for unit, limit in budget.limits().items():
        if getattr(so_far, unit) >= limit:
            return unit
    return None


def unit_that_ends_a_trial(budget: Budget, so_far: Spent) -> str | None:
    """The unit that is spent, so that a trial in flight must stop, or None.

    The number of trials never stops one in flight: that one was allowed to start.
    """
    for unit, limit in budget.limits().items():
        if unit != "trials" and getattr(so_far, unit) >= limit:
            return unit
    return None


def largest_share(budget: Budget, so_far: Spent) -> float:
    """The largest share of any limit that is spent, at most 1; 0 without limits."""
    return min(1.0, max((getattr(so_far, unit) / limit for unit, limit in budget.limits().items()), default=0.0))
