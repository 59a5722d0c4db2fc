"""Forks of trials that were run: what they save is what was really trained alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scalesearch.core.axis import Interval
from scalesearch.core.forks import LATEST, MOST, Forks
from scalesearch.core.parameters import Parameters
from scalesearch.core.prefix import shared_steps
from scalesearch.core.results import TrialResult
from scalesearch.core.schedule_space import ConstantSpace, PiecewiseSpace
from scalesearch.core.space import BatchSizes, SearchSpace
from tests.core.simulated import EASY, constant, decaying, run

MAX_EXAMPLES = 12_800  # 200 steps
SPACE = SearchSpace(
    batch_sizes=BatchSizes(low=8, high=512, multiple_of=None, divisor=1),
    learning_rate=Interval(1e-3, 10.0),
    momentum=None,
    schedule=PiecewiseSpace(decays=2, boundaries=Interval(64, MAX_EXAMPLES), decay_factor=Interval(0.1, 0.1)),
)
TRUNK = decaying(0.05, 100, 150)


def trained(parameters: Parameters, *, seed: int = 0, max_examples: int = MAX_EXAMPLES) -> TrialResult:
    return run(EASY, parameters, max_examples=max_examples, seed=seed)


def forks(*results: TrialResult, space: SearchSpace = SPACE) -> Forks:
    return Forks(space=space, results=results, max_examples=MAX_EXAMPLES)


def test_forks_differ_in_boundaries_only_and_save_what_was_trained() -> None:
    trunk = trained(TRUNK, max_examples=110 * 64)
    drawn = forks(trunk).draw([TRUNK], np.random.default_rng(0))
    assert len(drawn) > 30
    steps = {m.step for m in trunk.measurements}
    for parameters, saved in drawn.items():
        assert replace(parameters, schedule=TRUNK.schedule) == TRUNK
        assert parameters.learning_rate == TRUNK.learning_rate
        assert saved in steps
        assert 0 < saved <= min(shared_steps(parameters, TRUNK), 110)
    kept_first = [p.schedule.boundaries[0] == TRUNK.schedule.boundaries[0] for p in drawn]
    assert any(kept_first)
    assert not all(kept_first)


def test_a_fork_saves_nothing_of_a_run_with_another_seed() -> None:
    first, repeat = trained(TRUNK, seed=1, max_examples=40 * 64), trained(TRUNK, seed=2, max_examples=110 * 64)
    fork = decaying(0.05, 90, 150)
    assert forks(first, repeat).saved_steps(fork) == first.measurements[-1].step
    assert forks(repeat, first).saved_steps(fork) == max(m.step for m in repeat.measurements if m.step <= 90)


@pytest.mark.parametrize("again", [TRUNK, decaying(0.05, 100, 150, 300)])
def test_a_repeat_is_trained_anew(again: Parameters) -> None:
    assert forks(trained(TRUNK)).saved_steps(again) == 0


def test_what_shows_the_same_hit_again_is_no_fork() -> None:
    trunk = trained(decaying(0.2, 120, 199))
    assert trunk.reached is not None
    hit = trunk.reached.steps
    assert 120 < LATEST * hit < hit < 170
    after, just_before, before = (
        decaying(0.2, 120, round(at)) for at in (hit + 20, hit * LATEST + 1, hit * LATEST - 2)
    )
    assert [forks(trunk).saved_steps(p) > 0 for p in (after, just_before, before)] == [False, False, True]
    drawn = forks(trunk).draw([trunk.parameters], np.random.default_rng(1))
    assert all(shared_steps(p, trunk.parameters) <= LATEST * hit for p in drawn)


def test_a_run_without_decays_is_a_trunk_too() -> None:
    trunk = constant(0.05)
    drawn = forks(trained(trunk)).draw([trunk], np.random.default_rng(1))
    assert all(p.learning_rate == 0.05 for p in drawn)
    assert max(drawn.values()) > 50


def test_without_boundaries_there_are_no_forks() -> None:
    trunk = constant(0.05)
    assert (
        forks(trained(trunk), space=replace(SPACE, schedule=ConstantSpace())).draw([trunk], np.random.default_rng(1))
        == {}
    )


def test_only_so_many_go_on_from_one_run() -> None:
    """All of them have its luck; whether its snapshots were still there is not asked."""
    trunk = trained(TRUNK, max_examples=110 * 64)
    went_on = [trained(decaying(0.05, 60 + 10 * i, 150)) for i in range(MOST)]
    others = [trained(decaying(0.07, 60, 150)), trained(decaying(0.05, 55, 150), seed=9)]
    rng = np.random.default_rng(0)
    assert forks(trunk, *went_on[:-1], *others).draw([TRUNK], rng)
    assert not forks(trunk, *went_on).draw([TRUNK], rng)
