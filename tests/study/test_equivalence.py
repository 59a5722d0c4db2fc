"""Checks of workers whose workloads have faults of known kinds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from scalesearch.core.equivalence import CheckedRun, Part, Verdict
from scalesearch.core.parameters import Parameters
from scalesearch.core.schedule import Constant
from scalesearch.errors import DefinitionError
from scalesearch.execution.tasks import CheckTask, Content, Task
from scalesearch.study.equivalence import check_equivalence

PARAMETERS = Parameters(global_batch_size=32, schedule=Constant(learning_rate=0.1), momentum=0.9)
PARTS = {Part.LOSS: "the loss", Part.STATISTICS: "norm", Part.RANDOM: "drop"}


class Worker:
    """Weights that end at 1, or elsewhere by 0.1 for each active fault once the batch is divided."""

    def __init__(
        self,
        replicas: int,
        *,
        faults: tuple[Part, ...] = (),
        always: float = 0.0,
        unseeded: bool = False,
        data: str = "a",
    ) -> None:
        self.runs: list[CheckTask] = []
        self._replicas, self._faults, self._always, self._unseeded, self._data = (
            replicas,
            faults,
            always,
            unseeded,
            data,
        )

    def answers(self, task: Task) -> Iterator[Content]:
        assert isinstance(task, CheckTask)
        self.runs.append(task)
        divided = self._replicas * task.parameters.accumulation > 1
        active = [fault for fault in self._faults if fault not in task.neutralised]
        moved = divided * (0.1 * len(active) + self._always) + self._unseeded * 0.2 * len(self.runs)
        yield CheckedRun(
            data_digest=self._data,
            initial=(np.zeros(2),),
            final=(np.full(2, 1.0 + moved),),
            losses=(1.0, 1.0 + moved),
            parts=PARTS,
        )


def checked(**options: object) -> tuple[Verdict, list[Worker]]:
    workers = [Worker(1, **options), Worker(2, **options)]  # type: ignore[arg-type]
    *_, last = check_equivalence(*workers, parameters=PARAMETERS, replicas=2, seed=0)
    assert isinstance(last, Verdict)
    return last, workers


def test_where_they_agree_nothing_more_is_run() -> None:
    verdict, workers = checked()
    assert verdict.agrees
    assert [len(w.runs) for w in workers] == [1, 1]


@pytest.mark.parametrize("faults", [(Part.LOSS,), (Part.STATISTICS, Part.RANDOM)])
def test_each_cause_is_found_and_no_other(faults: tuple[Part, ...]) -> None:
    verdict, _ = checked(faults=faults)
    assert not verdict.agrees
    assert verdict.causes == faults
    assert verdict.difference.weights == pytest.approx(0.1 * len(faults))
    assert verdict.repeated is not None
    assert verdict.repeated.agrees
    assert verdict.accumulated is not None
    assert verdict.accumulated.agrees


def test_what_no_part_explains_has_no_cause() -> None:
    verdict, _ = checked(faults=(Part.LOSS,), always=0.3)
    assert verdict.causes == ()
    assert verdict.without_any is not None
    assert verdict.without_any.weights == pytest.approx(0.3)


def test_what_is_not_repeatable_is_known_as_such() -> None:
    verdict, _ = checked(unseeded=True, always=0.5)
    assert verdict.repeated is not None
    assert not verdict.repeated.agrees


def test_other_data_in_each_process_end_the_check() -> None:
    one, several = Worker(1, data="a"), Worker(2, data="b")
    *_, verdict = check_equivalence(one, several, parameters=PARAMETERS, replicas=2, seed=0)
    assert isinstance(verdict, Verdict)
    assert not verdict.same_data
    assert not verdict.agrees
    assert len(one.runs) == 1


def test_a_batch_that_replicas_cannot_share_is_refused() -> None:
    with pytest.raises(DefinitionError, match="32 cannot be shared by 3"):
        list(check_equivalence(Worker(1), Worker(3), parameters=PARAMETERS, replicas=3, seed=0))
