"""The experiments that tell whether N replicas train as one does, and why not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from scalesearch.core.equivalence import CheckedRun, Part, Verdict, difference, same_start
from scalesearch.core.parameters import Parameters
from scalesearch.core.schedule import Constant
from scalesearch.definition import ResolvedStudy
from scalesearch.errors import DefinitionError
from scalesearch.execution.tasks import CheckTask
from scalesearch.study.profiling import Answering

STEPS = 3
LEAST_SHARE = 8  # examples per replica, so that statistics over them are worth the name


@dataclass(frozen=True)
class Trying:
    """What is being run now, in words."""

    what: str


def parameters_to_check(resolved: ResolvedStudy) -> Parameters:
    """A small global batch that the replicas can share, and the baseline's learning rate, else the middle of the search's."""
    space, replicas = resolved.space, resolved.replicas
    sizes = [s for s in space.batch_sizes.values() if s >= LEAST_SHARE * replicas] or space.batch_sizes.values()[-1:]
    rate = resolved.baseline.learning_rate if resolved.baseline else None
    if rate is None:
        rate = (space.learning_rate.low * space.learning_rate.high) ** 0.5
    return Parameters(
        global_batch_size=sizes[0],
        schedule=Constant(learning_rate=rate),
        momentum=space.momentum.low if space.momentum is not None else None,
    )


def check_equivalence(
    one: Answering, several: Answering, *, parameters: Parameters, replicas: int, seed: int
) -> Iterator[Trying | Verdict]:
    """Compare a worker of one replica with one of `replicas`; what is tried on the way, then the verdict."""
    if parameters.global_batch_size % replicas:
        raise DefinitionError(
            f"a global batch of {parameters.global_batch_size} cannot be shared by {replicas} replicas"
        )

    def run(worker: Answering, neutralised: frozenset[Part] = frozenset(), *, accumulation: int = 1) -> CheckedRun:
        task = CheckTask(
            parameters=replace(parameters, accumulation=accumulation), seed=seed, steps=STEPS, neutralised=neutralised
        )
        [found] = worker.answers(task)
        assert isinstance(found, CheckedRun)
        return found

    yield Trying(f"the workload as it is on 1 and on {replicas} replicas")
    alone, shared = run(one), run(several)
    verdict = Verdict(
        replicas=replicas,
        global_batch_size=parameters.global_batch_size,
        learning_rate=parameters.learning_rate,
        steps=STEPS,
        difference=difference(alone, shared),
        same_data=alone.data_digest == shared.data_digest,
        same_start=same_start(alone, shared),
        parts=alone.parts,
    )
    if verdict.agrees or not (verdict.same_data and verdict.same_start):
        yield verdict
        return
    yield Trying("the same again")
    verdict = replace(verdict, repeated=difference(shared, run(several)))
    yield Trying(f"1 replica that accumulates {replicas} micro-batches")
    verdict = replace(verdict, accumulated=difference(shared, run(one, accumulation=replicas)))
    everything = frozenset(alone.parts)
    yield Trying("all that may depend on how the batch is divided neutralised")
    verdict = replace(verdict, without_any=difference(run(one, everything), run(several, everything)))
    for part in alone.parts:
        yield Trying(f"the same, but {part} ({alone.parts[part]}) as it is")
        others = everything - {part}
        found = difference(run(one, others), run(several, others))
        verdict = replace(verdict, with_one={**verdict.with_one, part: found})
    yield verdict
