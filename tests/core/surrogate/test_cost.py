from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from scalesearch.core.parameters import Parameters
from scalesearch.core.surrogate.cost import CAP_MARGIN, Costs, Noise, odds, predict_costs
from scalesearch.core.surrogate.loss_curves import LossCurves
from scalesearch.core.surrogate.modes import Array, runs_of
from tests.core.simulated import constant, decaying

SURE = Noise(level=1e-6, bias=0.0, log_cost=0.1)
MODES = np.geomspace(1.0, 1e-3, 10)
MODEL = LossCurves(MODES, np.array([np.concatenate([np.full(10, 0.2), np.full(10, s)]) for s in (0.05, 0.2)]))
CANDIDATES = [
    constant(0.3, global_batch_size=256),
    constant(0.9, global_batch_size=1024),
    decaying(0.9, 100),
    decaying(0.5, 300, 320),
    decaying(0.2, 60, global_batch_size=16),
]


def crossing_on_every_step(parameters: Parameters, target: float, most_steps: int) -> Array:
    """First step at which each member of MODEL is below the target; NaN: none."""
    steps = np.arange(1.0, most_steps + 1)
    losses = MODEL.predict(runs_of([parameters]), steps[None])[:, 0]
    return np.array([steps[np.argmax(loss < target)] if (loss < target).any() else np.nan for loss in losses])


def predicted(candidates: Sequence[Parameters], *, target: float, noise: Noise = SURE, cap: float = 1000.0) -> Costs:
    return predict_costs(
        MODEL, candidates, target=target, noise=noise, cost_per_step=lambda b: 1.0, cap=cap, max_examples=1e9
    )


def test_thresholds_ascend_around_the_biased_target() -> None:
    thresholds = Noise(level=0.1, bias=0.05, log_cost=0.1).thresholds(2.0, 7)
    assert (np.diff(thresholds) > 0).all()
    assert thresholds[3] == pytest.approx(2.0 * np.exp(0.05))
    many = np.log(Noise(level=0.1, bias=0.05, log_cost=0.1).thresholds(1.0, 500))
    assert many.mean() == pytest.approx(0.05, abs=1e-3)
    assert many.std() == pytest.approx(0.1, rel=0.02)


@pytest.mark.parametrize("target", [0.7, 0.5, 0.3])
def test_the_crossing_is_that_of_the_model(target: float) -> None:
    costs = predicted(CANDIDATES, target=target)
    crossed = 0
    for i, parameters in enumerate(CANDIDATES):
        for member, exact in enumerate(crossing_on_every_step(parameters, target, 1000)):
            assert costs.miss[member, i] == float(np.isnan(exact))
            if not np.isnan(exact):
                crossed += 1
                # The exact one is a whole step, and the grid's points are up to 9 % apart.
                assert costs.hit[member, i] == pytest.approx(exact, rel=0.04, abs=1.5)
    assert crossed >= 3


@pytest.mark.parametrize("boundary", [200, 430, 777, 940])
def test_the_drop_after_a_late_decay_is_seen_where_it_is(boundary: int) -> None:
    """The geometric points alone are up to 80 steps apart there."""
    fast_and_slow = LossCurves(np.array([1.0, 3e-3]), np.array([[0.1, 1.0, 40.0, 0.0]]))
    parameters = decaying(1.5, boundary)
    losses = fast_and_slow.predict(runs_of([parameters]), np.array([[boundary, boundary + 4.0]]))[0, 0]
    costs = predict_costs(
        fast_and_slow,
        [parameters],
        target=float(losses.mean()),
        noise=SURE,
        cost_per_step=lambda b: 1.0,
        cap=1000.0,
        max_examples=1e9,
    )
    assert boundary < costs.hit[0, 0] < boundary + 6


def test_what_is_never_reached_costs_the_cap() -> None:
    costs = predicted(CANDIDATES, target=1e-3, cap=700.0)
    assert (costs.miss == 1.0).all()
    assert (costs.hit == 700.0).all()


def test_no_crossing_lies_beyond_the_cap() -> None:
    free = predicted(CANDIDATES, target=0.5)
    cap = float(np.median(free.hit))
    capped = predicted(CANDIDATES, target=0.5, cap=cap)
    assert (capped.hit <= cap * (1 + 1e-9)).all()
    assert (capped.miss[free.hit > 1.05 * cap] == 1.0).all()
    assert (capped.miss[free.hit < 0.95 * cap] == 0.0).all()


def test_no_crossing_lies_beyond_a_full_length_run() -> None:
    [parameters] = [CANDIDATES[1]]
    steps = crossing_on_every_step(parameters, 0.5, 1000)
    for share, missed in ((1.2, 0.0), (0.7, 1.0)):
        costs = predict_costs(
            MODEL,
            [parameters],
            target=0.5,
            noise=SURE,
            cost_per_step=lambda b: 1.0,
            cap=1000.0,
            max_examples=share * steps.max() * parameters.global_batch_size,
        )
        assert costs.miss[steps.argmax(), 0] == missed


def test_costs_are_in_the_unit_of_a_step() -> None:
    for parameters in CANDIDATES:
        unit = parameters.global_batch_size / 4.0
        steps = predicted([parameters], target=0.7)
        seconds = predict_costs(
            MODEL,
            [parameters],
            target=0.7,
            noise=SURE,
            cost_per_step=lambda b: b / 4.0,
            cap=1000.0 * unit,
            max_examples=1e9,
        )
        np.testing.assert_allclose(seconds.hit, steps.hit * unit)
        np.testing.assert_allclose(seconds.miss, steps.miss)


def test_a_plateau_that_grazes_the_target_may_miss() -> None:
    """The chance is that of a threshold below the plateau, and falls as the target rises."""
    parameters = constant(0.9)
    plateau = float(MODEL.predict(runs_of([parameters]), np.arange(1.0, 4001.0)[None])[0, 0].min())
    noise = Noise(level=0.05, bias=0.0, log_cost=0.1)
    chances = [
        float(predicted([parameters], target=plateau * np.exp(d), noise=noise, cap=4000.0).miss[0, 0])
        for d in (-0.15, -0.03, 0.001, 0.03, 0.15)
    ]
    assert chances == sorted(chances, reverse=True)
    assert chances[0] == 1.0
    assert 0.25 < chances[2] < 0.75
    assert chances[-1] == 0.0


def test_the_expected_cost_rises_with_the_chance_of_a_miss() -> None:
    miss = np.linspace(0.0, 1.0, 11)[None]
    costs = Costs(np.full((1, 11), 5.0), miss)
    expected = costs.expected(miss_factor=3.0)[0]
    assert (np.diff(expected) > 0).all()
    assert expected[0] == 5.0
    assert expected[-1] == 15.0
    assert (np.diff(costs.expected()[0]) > 0).all()


def odds_by_hand(hit: Array, chance: Array, cap: float, sure_to: float) -> tuple[float, float]:
    """(expected cost per hit, chance of a hit): members that say more than `sure_to` spend the cap for nothing."""
    within = np.where(hit <= sure_to, chance, 0.0)
    spent = within * hit + (1.0 - within) * cap
    return float(spent.mean() / max(within.mean(), 1e-6)), float(within.mean())


def test_odds_are_those_of_the_best_cap() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        hit = np.exp(random.normal(3.0, 0.8, size=(5, 3)))
        miss = random.choice([0.0, 0.3, 1.0], size=(5, 3))
        miss[0] = 0.3
        per_hit, cap, chance = odds(Costs(hit, miss))
        for i in range(3):
            by_hand = [odds_by_hand(hit[:, i], 1.0 - miss[:, i], CAP_MARGIN * h, h) for h in hit[:, i]]
            best = int(np.argmin([cost for cost, _ in by_hand]))
            assert per_hit[i] == pytest.approx(by_hand[best][0])
            assert chance[i] == pytest.approx(by_hand[best][1])
            assert cap[i] == pytest.approx(CAP_MARGIN * hit[best, i])


def test_odds_of_a_doubtful_candidate_may_be_worth_a_short_try() -> None:
    """Two members of five promise a hit at 10, the others none before 1,000: the cap is that of the promise."""
    per_hit, cap, chance = odds(Costs(np.array([[10.0], [10.0], [1000.0], [1000.0], [1000.0]]), np.zeros((5, 1))))
    assert 10.0 <= cap[0] < 20.0
    assert chance[0] == pytest.approx(0.4)
    assert 10.0 < per_hit[0] < 40.0


def test_odds_of_what_is_never_reached_are_hopeless() -> None:
    per_hit, _, chance = odds(Costs(np.full((4, 1), 50.0), np.ones((4, 1))))
    assert chance[0] == 0.0
    assert per_hit[0] > 1e6
