from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Measurement, Outcome, TrialResult
from scalesearch.core.simulate.workload import GradientNoise
from scalesearch.core.surrogate.modes import Array
from scalesearch.core.surrogate.stability import Stability, climbs, log_point, stability_of
from tests.core.simulated import EASY, constant, decaying, run
from tests.core.trials import METRIC, trial

MAX_EXAMPLES = 100_000


def limit(stability: Stability, *sizes: int) -> Array:
    """The largest effective rates."""
    return np.asarray(np.exp(stability.log_limit(np.log(np.array(sizes, dtype=float)))))


def points(*pairs: tuple[int, float]) -> tuple[tuple[float, float], ...]:
    return tuple((float(np.log(b)), float(np.log(e))) for b, e in pairs)


def ended(values: Sequence[float], outcome: Outcome, parameters: Parameters) -> tuple[TrialResult, Array]:
    result = replace(trial(0, [2.0, *values], outcome), parameters=parameters)
    return result, np.array(values)


def sorted_out(*trials: tuple[TrialResult, Array], max_examples: int = MAX_EXAMPLES) -> Stability:
    return stability_of([r for r, _ in trials], [losses for _, losses in trials], max_examples=max_examples)


def test_the_limit_lies_between_stable_and_unstable() -> None:
    known = Stability(stable=points((64, 1.0)), unstable=points((64, 3.0)))
    assert 1.0 < limit(known, 64)[0] < 3.0


@pytest.mark.parametrize(
    "known",
    [
        Stability(stable=points((64, 1.0)), unstable=points((64, 3.0))),
        Stability(stable=points((64, 1.0))),
        Stability(unstable=points((64, 3.0))),
        Stability(stable=points((16, 0.5), (256, 1.0)), unstable=points((64, 1.2), (1024, 4.0))),
    ],
    ids=["both", "stable", "unstable", "several"],
)
def test_limits_rise_with_the_batch_size_at_most_in_proportion(known: Stability) -> None:
    sizes = [2**k for k in range(14)]
    limits = limit(known, *sizes)
    assert (limits[1:] >= limits[:-1] * (1 - 1e-9)).all()
    assert (limits[1:] <= 2.0 * limits[:-1] * (1 + 1e-9)).all()


def test_an_unstable_point_binds_smaller_batches_and_larger_ones_in_proportion() -> None:
    known = Stability(stable=points((64, 0.1)), unstable=points((64, 1.0)))
    assert (limit(known, 1, 8, 32, 64) <= 1.0).all()
    assert limit(known, 128)[0] <= 2.0
    # A stable run at a larger batch shows that the rate could rise with it.
    grown = Stability(stable=points((64, 0.1), (512, 4.0)), unstable=points((64, 1.0)))
    assert limit(grown, 512)[0] > 4.0 > limit(known, 512)[0]
    assert limit(grown, 64)[0] <= 1.0


def test_a_stable_point_supports_larger_batches_and_smaller_ones_in_proportion() -> None:
    known = Stability(stable=points((64, 1.0)))
    assert (limit(known, 64, 128, 4096) >= 1.0).all()
    assert limit(known, 16)[0] == pytest.approx(limit(known, 64)[0] / 4.0)


def test_a_trial_goes_only_somewhat_beyond_what_is_known_to_be_stable() -> None:
    known = Stability(stable=points((64, 0.01)), unstable=points((64, 100.0)))
    assert 0.01 < limit(known, 64)[0] < 0.05
    assert limit(Stability(stable=points((64, 0.01))), 64)[0] < 0.05


def test_with_unstable_points_alone_the_limit_is_well_below() -> None:
    assert 0.3 < limit(Stability(unstable=points((64, 1.0))), 64)[0] < 0.65


def test_stable_points_that_an_unstable_one_disproves_do_not_count() -> None:
    """A short run at a small batch seemed stable where a larger batch diverged."""
    disproved = Stability(stable=points((16, 2.0), (64, 0.2)), unstable=points((64, 1.0)))
    without = Stability(stable=points((64, 0.2)), unstable=points((64, 1.0)))
    np.testing.assert_allclose(limit(disproved, 8, 16, 64, 256), limit(without, 8, 16, 64, 256))
    assert limit(disproved, 16)[0] < 1.0


def test_where_all_stable_points_are_disproved_the_unstable_ones_speak() -> None:
    known = Stability(stable=points((16, 2.0)), unstable=points((64, 1.0)))
    assert (limit(known, 4, 16, 64) < 1.0).all()
    assert (limit(known, 4, 16, 64) > 0.0).all()


def test_trials_are_sorted_by_outcome() -> None:
    falling = [1.5, 1.2, 1.0]
    known = sorted_out(
        ended([1.5, np.inf], Outcome.DIVERGED, constant(2.0)),
        ended(falling, Outcome.CAPPED, constant(0.1)),
        ended(falling, Outcome.EXHAUSTED, constant(0.2, momentum=0.9)),
        ended([0.05], Outcome.REACHED, constant(0.4, global_batch_size=256)),
        ended([1.9], Outcome.CAPPED, constant(0.05, global_batch_size=16)),
        ended([], Outcome.OUT_OF_MEMORY, constant(0.3, global_batch_size=4096)),
    )
    np.testing.assert_allclose(known.unstable, points((64, 2.0)))
    np.testing.assert_allclose(known.stable, points((64, 0.1), (64, 2.0), (256, 0.4), (16, 0.05)))


def test_a_point_is_the_effective_rate() -> None:
    assert log_point(constant(0.1, momentum=0.9)) == pytest.approx((np.log(64), 0.0))


def slow_divergence(*, batch: int) -> TrialResult:
    """Multiplicative noise lets small batches diverge slowly at a rate that large ones bear."""
    workload = replace(EASY, target=1e-6, gradient_noise=GradientNoise(variance=0.1, multiplicative=40.0))
    rate = 1.02 * 2.0 / (1.0 + 40.0 / 16)
    return run(workload, constant(rate, global_batch_size=batch), max_examples=100 * batch)


def climbs_in(result: TrialResult) -> bool:
    return climbs(result, np.array([m.metrics["val/loss"] for m in result.measurements[1:]]))


def test_slow_divergence_is_seen_before_it_is_called_divergence() -> None:
    result = slow_divergence(batch=16)
    assert result.outcome is Outcome.EXHAUSTED
    assert climbs_in(result)
    assert not climbs_in(slow_divergence(batch=128))


def test_healthy_noisy_curves_do_not_climb() -> None:
    noisy = replace(EASY, target=1e-6, run_noise=replace(EASY.run_noise, evaluation=0.06))
    for seed in range(20):
        assert not climbs_in(run(noisy, constant(1.2, global_batch_size=32), max_examples=30_000, seed=seed))


HIGH_PLATEAU = [2.0, 1.9, 1.9, 1.9, 1.9]  # after 10, 20, … steps
FALLING = [1.5, 1.2, 1.0, 0.9, 0.8]


def test_a_high_plateau_from_the_start_is_found_out_by_a_lower_rate() -> None:
    """It neither diverges nor climbs."""
    known = sorted_out(
        ended(FALLING, Outcome.CAPPED, constant(0.1)), ended(HIGH_PLATEAU, Outcome.CAPPED, constant(1.0))
    )
    np.testing.assert_allclose(known.stable, points((64, 0.1)))
    np.testing.assert_allclose(known.unstable, points((64, 1.0)))


@pytest.mark.parametrize(
    "other",
    [
        ended(FALLING, Outcome.CAPPED, constant(2.0)),
        ended(FALLING, Outcome.CAPPED, constant(0.1, global_batch_size=512)),
        ended([1.9, 1.8, 1.75, 1.75, 1.72], Outcome.CAPPED, constant(0.1)),
        ended(
            [*HIGH_PLATEAU[:3], 1.0, 0.5], Outcome.CAPPED, constant(0.1)
        ),  # that it falls behind later proves nothing
    ],
    ids=["higher rate", "larger batch", "hardly better", "better later"],
)
def test_a_slow_run_is_not_unstable_without_such_evidence(other: tuple[TrialResult, Array]) -> None:
    slow = ended(HIGH_PLATEAU, Outcome.CAPPED, constant(1.0))
    assert sorted_out(slow, other, max_examples=20 * 20 * 64).unstable == ()


def test_what_reached_the_target_did_not_fall_behind() -> None:
    known = sorted_out(
        ended(FALLING, Outcome.CAPPED, constant(0.1)), ended([*HIGH_PLATEAU, 0.05], Outcome.REACHED, constant(1.0))
    )
    assert known.unstable == ()


def test_a_curve_is_judged_at_its_first_rate_only() -> None:
    """What happens after a boundary says nothing about the rate that the trial began with."""
    values = [1.5, 1.2, 1.0, 0.9, 0.8, 0.8, 2.0, 2.2, 2.5, 2.5]
    result = trial(0, [2.0, *values], Outcome.CAPPED)
    assert climbs(result, np.array(values))
    decayed = replace(result, parameters=decaying(0.1, 60))
    assert not climbs(decayed, np.array(values))


def test_what_reached_the_target_did_not_climb() -> None:
    values = [1.0, 0.5, 0.2, 0.4, 0.6, 0.9, 0.05]
    result = trial(0, [2.0, *values], Outcome.REACHED)
    assert result.reached is not None
    assert not climbs(result, np.array(values))


def test_a_metric_that_is_no_number_is_not_stable_by_accident() -> None:
    measured: tuple[Measurement, ...] = trial(0, [2.0, 1.0, np.nan, np.nan], Outcome.DIVERGED).measurements
    result = replace(trial(0, [2.0], Outcome.DIVERGED), measurements=measured)
    losses = np.array([m.metrics[METRIC] for m in measured[1:]])
    assert stability_of([result], [losses], max_examples=MAX_EXAMPLES).stable == ()


def test_a_short_stable_run_is_in_doubt_once_a_run_nearby_proves_unstable_late() -> None:
    """Slow divergence: what was fine after 25 steps may not be so after 100."""
    short = ended([1.5, 1.2, 1.0, 0.9, 0.8], Outcome.CAPPED, constant(0.5))
    late = ended([1.0] * 100, Outcome.DIVERGED, constant(0.8))
    early = ended([1.0] * 6, Outcome.DIVERGED, constant(0.8))
    long = ended([1.0] * 80, Outcome.CAPPED, constant(0.5))
    far_below = ended([1.5, 1.2, 1.0, 0.9, 0.8], Outcome.CAPPED, constant(0.1))
    assert limit(sorted_out(short, early), 64)[0] > 0.5, "instability that shows as early leaves no doubt"
    assert limit(sorted_out(short, late), 64)[0] < 0.5
    assert limit(sorted_out(short, long, late), 64)[0] > 0.5, "the longest run at a rate counts"
    assert limit(sorted_out(far_below, late), 64)[0] > 0.15, "far below, it says nothing"


def test_rates_near_a_limit_that_is_gradual_are_less_sure_to_be_good() -> None:
    """A loss that stays behind tells that networks worsen long before they diverge; divergence alone does not."""
    fine = ended(FALLING, Outcome.CAPPED, constant(0.1))
    gradual = sorted_out(fine, ended(HIGH_PLATEAU, Outcome.CAPPED, constant(1.0)))
    sudden = sorted_out(fine, ended(HIGH_PLATEAU, Outcome.DIVERGED, constant(1.0)))
    at_limit = limit(gradual, 64)[0]
    rates = [constant(at_limit * share) for share in (1.0, 0.7, 0.2)]
    ease = gradual.ease(rates)
    assert ease[0] == pytest.approx(0.5)
    assert ease[0] < ease[1] < ease[2]
    assert ease[2] > 0.99
    np.testing.assert_array_equal(sudden.ease(rates), 1.0)


def test_a_loss_that_seemed_to_fall_behind_proves_nothing_where_a_higher_rate_reached_the_target() -> None:
    """As that loss was noise: the smaller batch, at a rate no lower, got there."""
    slow, fast = constant(0.034, global_batch_size=512), constant(0.059, global_batch_size=512)
    runs = [
        ended([1.0, 0.6, 0.5, 0.4, 0.36, 0.35], Outcome.CAPPED, slow),
        ended([1.0, 0.8, 0.7, 0.6, 0.5, 0.45], Outcome.CAPPED, fast),
    ]
    assert log_point(fast) in sorted_out(*runs).unstable
    hit = ended([1.0, 0.5, 0.2, 0.09], Outcome.REACHED, constant(0.076, global_batch_size=128))
    known = sorted_out(hit, *runs)
    assert known.unstable == ()
    assert not known.gradual
    assert limit(known, 128)[0] > 0.076
    for other in (constant(0.05, global_batch_size=128), constant(0.076, global_batch_size=1024)):
        assert log_point(fast) in sorted_out((replace(hit[0], parameters=other), hit[1]), *runs).unstable
    diverged = (replace(runs[1][0], outcome=Outcome.DIVERGED), runs[1][1])
    assert log_point(fast) in sorted_out(hit, runs[0], diverged).unstable
