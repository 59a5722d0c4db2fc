from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scalesearch.core.parameters import Parameters
from scalesearch.core.simulate import SimulatedWorkload
from scalesearch.core.surrogate.loss_curves import Curve, LossCurves, equations_of, fit_loss_curves
from scalesearch.core.surrogate.modes import Array, runs_of
from tests.core.simulated import EASY, QUIET, constant, decaying, run

NOISY = replace(EASY, target=1e-9)  # so that all runs go on to their end
EXACT = replace(NOISY, run_noise=QUIET)
TARGET = 0.1
SEEN = [
    constant(1.5),
    decaying(1.0, 150),
    constant(0.8, global_batch_size=16),
    decaying(0.6, 400, 600),
    decaying(0.8, 300, global_batch_size=16),
    decaying(1.4, 60, global_batch_size=256),
]
HELD_OUT = [
    constant(0.7),
    decaying(1.3, 250),
    decaying(0.5, 100, global_batch_size=32),
    decaying(1.2, 40, 80, global_batch_size=128),
    constant(0.4, global_batch_size=16),
]


def curve(workload: SimulatedWorkload, parameters: Parameters, *, seed: int = 0, max_examples: int = 600 * 64) -> Curve:
    measured = run(workload, parameters, max_examples=max_examples, seed=seed).measurements[1:]
    losses = np.array([m.metrics["val/loss"] for m in measured])
    return Curve(parameters, np.array([m.step for m in measured], dtype=float), losses)


def fitted(curves: list[Curve], *, seed: int = 0, members: int = 8) -> LossCurves:
    return fit_loss_curves(
        curves,
        initial_loss=EASY.initial_loss,
        target=TARGET,
        longest=2000.0,
        members=members,
        rng=np.random.default_rng(seed),
    )


def log_predictions(model: LossCurves, held_out: Curve) -> Array:
    """(members, points), where the loss is within a factor of ten of the target."""
    near = held_out.losses < 10.0 * TARGET
    predicted = model.predict(runs_of([held_out.parameters]), held_out.steps[None])[:, 0]
    return np.asarray(np.log(predicted[:, near] / held_out.losses[near]))


@pytest.mark.parametrize(("workload", "error"), [(EXACT, 0.05), (NOISY, 0.1)], ids=["exact", "noisy"])
def test_a_handful_of_runs_predicts_the_others(workload: SimulatedWorkload, error: float) -> None:
    """Other rates, batch sizes and boundaries, to a root mean square error of the log loss."""
    model = fitted([curve(workload, p, seed=i) for i, p in enumerate(SEEN)])
    for parameters in HELD_OUT:
        log_error = np.median(log_predictions(model, curve(EXACT, parameters)), axis=0)
        assert len(log_error) > 10
        assert np.sqrt(np.mean(log_error**2)) < error


def test_a_capped_run_tells_as_much_of_the_beginning() -> None:
    """Runs that were stopped at a third of their way, all above the target, predict where others begin to level."""
    model = fitted([curve(EXACT, p, max_examples=200 * 64) for p in SEEN])
    held_out = curve(EXACT, constant(0.7), max_examples=300 * 64)
    assert np.abs(np.median(log_predictions(model, held_out), axis=0)).max() < 0.15


def test_losses_are_never_negative() -> None:
    model = fitted([curve(NOISY, p, seed=i) for i, p in enumerate(SEEN)])
    assert (model.coefficients >= 0.0).all()
    candidates = runs_of([decaying(rate, 50, 90, global_batch_size=b) for rate in (0.01, 1.0) for b in (2, 4096)])
    losses = model.predict(candidates, np.tile(np.geomspace(1.0, 1e6, 40), (4, 1)))
    assert (losses >= 0.0).all()
    assert np.isfinite(losses).all()


def test_before_training_the_loss_is_the_initial_one() -> None:
    model = fitted([curve(EXACT, p) for p in SEEN])
    start = model.predict(runs_of(HELD_OUT), np.zeros((len(HELD_OUT), 1)))
    np.testing.assert_allclose(start, EASY.initial_loss, rtol=0.15)


def test_more_runs_agree_more() -> None:
    few, many = ([curve(NOISY, p, seed=i) for i, p in enumerate(SEEN[:n])] for n in (2, 6))

    def disagreement(curves: list[Curve]) -> float:
        model = fitted(curves)
        return float(np.mean([log_predictions(model, curve(EXACT, p)).std(axis=0).mean() for p in HELD_OUT]))

    assert disagreement(many) < 0.5 * disagreement(few)


def test_runs_that_contradict_each_other_divide_the_ensemble() -> None:
    """Two runs of the same parameters, one of them far luckier: each member trusts some runs more than others."""
    seen = curve(EXACT, decaying(1.0, 150))
    agreeing, contradicting = (
        [replace(seen, losses=seen.losses / factor), replace(seen, losses=seen.losses * factor)]
        for factor in (1.0, 1.3)
    )
    spread = [float(log_predictions(fitted(curves), seen).std(axis=0).mean()) for curves in (agreeing, contradicting)]
    assert spread[1] > 0.05
    assert spread[1] > 2.0 * spread[0]


def test_one_batch_size_leaves_open_what_a_larger_one_brings() -> None:
    """A plateau may be gradient noise, which a larger batch removes, or slow modes, which it does not."""
    plateau = curve(EXACT, constant(1.0), max_examples=300 * 64)
    larger = constant(1.0, global_batch_size=512)
    where = runs_of([larger]), np.array([[300.0]])
    alone = fitted([plateau]).predict(*where)[:, 0, 0]
    with_another = fitted([plateau, curve(EXACT, larger, max_examples=300 * 512)]).predict(*where)[:, 0, 0]
    assert np.log(alone).std() > 0.3
    assert np.log(with_another).std() < 0.1


def test_no_member_hides_a_misfit_as_noise_that_is_still_to_come() -> None:
    """After one run with too early a decay, a longer plateau must not be expected to rise above what was seen."""
    seen = [curve(EXACT, constant(0.8), max_examples=40 * 64), curve(EXACT, decaying(1.0, 30), max_examples=200 * 64)]
    before_the_decay = seen[1].losses[seen[1].steps <= 30][-1]
    longer = fitted(seen, members=10).predict(runs_of([constant(1.0)]), np.array([[300.0, 600.0]]))[:, 0]
    assert longer.max() < before_the_decay


def test_the_same_random_numbers_give_the_same_fit() -> None:
    curves = [curve(NOISY, p) for p in SEEN[:3]]
    first, again, other = fitted(curves), fitted(curves), fitted(curves, seed=1)
    np.testing.assert_array_equal(first.coefficients, again.coefficients)
    assert not np.allclose(first.coefficients, other.coefficients)


def test_the_order_of_the_curves_does_not_matter_to_the_plain_fit() -> None:
    curves = [curve(NOISY, p) for p in SEEN[:4]]
    steps = np.array([[50.0, 500.0]])
    forward = fitted(curves, members=1).predict(runs_of([HELD_OUT[0]]), steps)
    backward = fitted(curves[::-1], members=1).predict(runs_of([HELD_OUT[0]]), steps)
    np.testing.assert_allclose(forward, backward, rtol=0.03)


def test_one_short_curve_is_enough_to_fit() -> None:
    model = fitted([Curve(constant(0.1), np.array([5.0, 10.0]), np.array([4.0, 3.5]))])
    near = model.predict(runs_of([constant(0.1)]), np.array([[10.0]]))
    assert np.median(near) == pytest.approx(3.5, rel=0.2)


def test_a_beginning_knows_nothing_of_later_curves() -> None:
    first, second, third = (curve(NOISY, p) for p in (constant(0.8), decaying(1.0, 150), decaying(0.6, 400)))
    worse = replace(third, losses=3.0 * third.losses)

    def beginning(count: int, *curves: Curve) -> Array:
        equations = equations_of(curves, initial_loss=EASY.initial_loss, target=TARGET, longest=2000.0)
        return equations.beginning(count).coefficients

    np.testing.assert_array_equal(beginning(2, first, second, third), beginning(2, first, second, worse))
    assert not np.allclose(beginning(3, first, second, third), beginning(3, first, second, worse))
    assert not np.allclose(beginning(1, first, second, third), beginning(2, first, second, third))


def test_the_fit_follows_the_curves_that_are_trusted() -> None:
    seen = curve(EXACT, decaying(1.0, 150))
    low, high = (replace(seen, losses=seen.losses * factor) for factor in (0.7, 1.4))

    def end(*trust: float) -> float:
        equations = equations_of(
            [low, high], initial_loss=EASY.initial_loss, target=TARGET, longest=2000.0, trust=np.array(trust)
        )
        model = equations.ensemble(1, np.random.default_rng(0))
        return float(model.predict(runs_of([seen.parameters]), seen.steps[None, -1:])[0, 0, 0])

    assert end(1.0, 0.01) == pytest.approx(low.losses[-1], rel=0.1)
    assert end(0.01, 1.0) == pytest.approx(high.losses[-1], rel=0.1)


def test_what_is_known_of_a_curve_is_not_counted_twice() -> None:
    seen = [curve(NOISY, p) for p in SEEN]
    again = replace(seen[3], losses=1.5 * seen[3].losses)
    before, known, new = (
        fitted([*seen, replace(again, known=k)], members=1).predict(runs_of([SEEN[3]]), seen[3].steps[None])
        for k in (10**6, int(again.steps[-1]), 0)
    )
    assert (before == known).all()
    assert np.abs(np.log(new / known)).max() > 0.02
