from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scalesearch.core.accumulation import AsFewAsFit
from scalesearch.core.axis import Axis, Interval
from scalesearch.core.parameters import Parameters
from scalesearch.core.schedule import Constant, Linear, Piecewise, Schedule
from scalesearch.core.schedule_space import ConstantSpace, LinearSpace, PiecewiseSpace, ScheduleSpace
from scalesearch.core.space import BatchSizes, SearchSpace


@st.composite
def intervals(draw: st.DrawFn, low: float, high: float) -> Interval:
    """Pinned ones too."""
    a, b = sorted((draw(st.floats(low, high)), draw(st.floats(low, high))))
    return Interval(a, draw(st.sampled_from([a, b])))


@st.composite
def example_intervals(draw: st.DrawFn) -> Interval:
    low = draw(st.integers(1, 10**8))
    return Interval(low, low + draw(st.integers(3, 10**9)))


@st.composite
def batch_sizes(draw: st.DrawFn) -> BatchSizes:
    divisor = draw(st.integers(1, 12))
    multiple_of = draw(st.none() | st.integers(1, 48))
    low = draw(st.integers(1, 512))
    sizes = {"low": low, "high": low + draw(st.integers(0, 20_000))}
    if multiple_of is None:
        divisor = 2 ** draw(st.integers(0, 5))
        sizes = {"low": 2 ** draw(st.integers(0, 6)), "high": 2 ** draw(st.integers(6, 16))}
    step = math.lcm(multiple_of or 1, divisor)
    assume(sizes["high"] // step > (sizes["low"] - 1) // step)
    return BatchSizes(**sizes, multiple_of=multiple_of, divisor=divisor)


schedule_spaces: st.SearchStrategy[ScheduleSpace] = st.one_of(
    st.just(ConstantSpace()),
    st.builds(
        PiecewiseSpace, decays=st.integers(1, 3), boundaries=example_intervals(), decay_factor=intervals(0.01, 1.0)
    ),
    st.builds(LinearSpace, decay_examples=example_intervals(), end_factor=intervals(1e-4, 1.0)),
)
spaces = st.builds(
    SearchSpace,
    batch_sizes=batch_sizes(),
    learning_rate=intervals(1e-5, 10.0),
    momentum=st.none() | intervals(0.0, 0.9999),
    schedule=schedule_spaces,
    accumulation=st.just(1),
)


def at_unit_point(axis: Axis, u: float) -> float:
    """The value of an axis at a fraction of its length, as a sampler draws it."""
    if axis.log:
        value = math.exp(math.log(axis.low) + u * (math.log(axis.high) - math.log(axis.low)))
    else:
        value = axis.low + u * (axis.high - axis.low)
    return axis.clip(value)


def point(space: SearchSpace, data: st.DataObject) -> dict[str, float]:
    units = st.floats(0.0, 1.0)
    return {axis.name: at_unit_point(axis, data.draw(units)) for axis in space.axes()}


@given(spaces, st.data())
def test_every_point_is_a_schedule_and_a_batch_inside_the_limits(space: SearchSpace, data: st.DataObject) -> None:
    parameters = space.parameters(point(space, data))
    assert parameters.global_batch_size in space.batch_sizes.values()
    assert space.learning_rate.low <= parameters.learning_rate <= space.learning_rate.high
    if space.momentum is None:
        assert parameters.momentum is None
    else:
        assert parameters.momentum is not None
        assert space.momentum.low - 1e-12 <= parameters.momentum <= space.momentum.high + 1e-12
    match space.schedule, parameters.schedule:
        case ConstantSpace(), schedule:
            assert isinstance(schedule, Constant)
        case PiecewiseSpace() as piecewise, schedule:
            assert isinstance(schedule, Piecewise)
            assert len(schedule.boundaries) == piecewise.decays
            assert list(schedule.boundaries) == sorted(set(schedule.boundaries))
            assert piecewise.boundaries.low <= schedule.boundaries[0]
            assert schedule.boundaries[-1] <= piecewise.boundaries.high
            assert piecewise.decay_factor.low <= schedule.decay_factor <= piecewise.decay_factor.high
        case LinearSpace() as linear, schedule:
            assert isinstance(schedule, Linear)
            assert linear.decay_examples.low <= schedule.decay_examples <= linear.decay_examples.high
            assert linear.end_factor.low <= schedule.end_factor <= linear.end_factor.high


@given(spaces, st.data())
def test_parameters_survive_the_way_to_coordinates_and_back(space: SearchSpace, data: st.DataObject) -> None:
    parameters = space.parameters(point(space, data))
    back = space.parameters(space.coordinates(parameters))
    assert back.global_batch_size == parameters.global_batch_size
    assert back.learning_rate == pytest.approx(parameters.learning_rate, rel=1e-9)
    assert (back.momentum is None) == (parameters.momentum is None)
    if parameters.momentum is not None:
        assert back.momentum == pytest.approx(parameters.momentum, abs=1e-12)
    assert back.schedule.boundaries == pytest.approx(parameters.schedule.boundaries, abs=1)
    for name in ("decay_factor", "end_factor"):
        assert getattr(back.schedule, name, None) == pytest.approx(getattr(parameters.schedule, name, None))


schedules: st.SearchStrategy[Schedule] = st.one_of(
    st.builds(Constant, learning_rate=st.floats(1e-9, 1e6)),
    st.builds(
        Piecewise,
        learning_rate=st.floats(1e-9, 1e6),
        decay_factor=st.floats(1e-6, 1.0),
        boundaries=st.lists(st.integers(1, 10**12), max_size=5, unique=True).map(lambda b: tuple(sorted(b))),
    ),
    st.builds(
        Linear,
        learning_rate=st.floats(1e-9, 1e6),
        decay_examples=st.integers(1, 10**12),
        end_factor=st.floats(0.0, 1.0),
    ),
)
anything = st.builds(
    Parameters,
    global_batch_size=st.integers(1, 10**7),
    schedule=schedules,
    momentum=st.none() | st.floats(0.0, 0.99999),
)


@given(spaces, anything)
def test_coordinates_of_any_parameters_lie_on_the_axes(space: SearchSpace, parameters: Parameters) -> None:
    coordinates = space.coordinates(parameters)
    axes = {axis.name: axis for axis in space.axes()}
    assert coordinates.keys() == axes.keys()
    for name, value in coordinates.items():
        assert axes[name].low <= value <= axes[name].high
        assert not axes[name].integer or value == int(value)
    space.parameters(coordinates)  # is a point of the space


def space(schedule: ScheduleSpace | None = None, *, momentum: Interval | None = None) -> SearchSpace:
    return SearchSpace(
        batch_sizes=BatchSizes(low=8, high=512, multiple_of=None, divisor=4),
        learning_rate=Interval(0.001, 1.0),
        momentum=momentum or Interval(0.9, 0.9),
        schedule=schedule or ConstantSpace(),
    )


@pytest.mark.parametrize(("size", "nearest"), [(1, 8), (10**6, 512), (90, 64), (91, 128), (100, 128)])
def test_a_batch_outside_of_the_space_becomes_the_nearest_in_it(size: int, nearest: int) -> None:
    baseline = Parameters(global_batch_size=size, schedule=Constant(learning_rate=0.1), momentum=0.9)
    assert space().parameters(space().coordinates(baseline)).global_batch_size == nearest


@pytest.mark.parametrize(("rate", "nearest"), [(1e-9, 0.001), (50.0, 1.0)])
def test_a_learning_rate_outside_of_the_space_becomes_its_edge(rate: float, nearest: float) -> None:
    baseline = Parameters(global_batch_size=64, schedule=Constant(learning_rate=rate), momentum=0.9)
    assert space().parameters(space().coordinates(baseline)).learning_rate == pytest.approx(nearest)


def test_learning_rate_stays_inside_its_limits_where_the_effective_one_is_not() -> None:
    """A corner of the box (effective rate, momentum) that no learning rate inside the limits reaches."""
    searched = space(momentum=Interval(0.0, 0.99))
    axes = {a.name: a for a in searched.axes()}
    at = {
        "log2_global_batch_size": 6,
        "effective_learning_rate": axes["effective_learning_rate"].high,
        "one_minus_momentum": axes["one_minus_momentum"].high,
    }
    assert searched.parameters(at).learning_rate == 1.0
    assert searched.parameters(at).momentum == 0.0


def test_no_decay_is_a_boundary_as_late_as_possible() -> None:
    piecewise = space(PiecewiseSpace(decays=2, boundaries=Interval(100, 5000), decay_factor=Interval(0.1, 0.5)))
    baseline = Parameters(global_batch_size=64, schedule=Constant(learning_rate=0.1), momentum=0.9)
    assert piecewise.parameters(piecewise.coordinates(baseline)).schedule == Piecewise(
        learning_rate=pytest.approx(0.1), decay_factor=0.5, boundaries=(4999, 5000)
    )


def test_boundaries_outside_of_the_space_become_its_edges() -> None:
    piecewise = space(PiecewiseSpace(decays=2, boundaries=Interval(100, 5000), decay_factor=Interval(0.1, 0.1)))
    schedule = Piecewise(learning_rate=0.1, decay_factor=0.1, boundaries=(10, 90_000, 100_000))
    baseline = Parameters(global_batch_size=64, schedule=schedule, momentum=0.9)
    assert piecewise.parameters(piecewise.coordinates(baseline)).schedule.boundaries == (100, 5000)


def test_boundaries_stay_apart_where_the_interval_has_no_room() -> None:
    pinned = PiecewiseSpace(decays=3, boundaries=Interval(2, 2), decay_factor=Interval(0.1, 0.1))
    at = {"decay_boundary_1": 2.0, "decay_boundary_2_fraction": 1.0, "decay_boundary_3_fraction": 0.0}
    assert pinned.schedule(0.1, at).boundaries == (1, 2, 3)


@pytest.mark.parametrize(
    ("low", "high", "multiple_of", "divisor", "expected"),
    [
        (8, 64, None, 1, (8, 16, 32, 64)),
        (1, 8, None, 4, (4, 8)),
        (8, 8, None, 8, (8,)),
        (10, 40, 12, 1, (12, 24, 36)),
        (1, 60, 8, 3, (24, 48)),
        (24, 24, 8, 3, (24,)),
    ],
)
def test_batch_sizes(low: int, high: int, multiple_of: int | None, divisor: int, expected: tuple[int, ...]) -> None:
    sizes = BatchSizes(low=low, high=high, multiple_of=multiple_of, divisor=divisor)
    assert sizes.values() == expected
    axis = sizes.axis()
    assert axis.integer
    assert tuple(sizes.from_axis(v) for v in range(int(axis.low), int(axis.high) + 1)) == expected
    assert [sizes.from_axis(sizes.to_axis(v)) for v in expected] == list(expected)


@pytest.mark.parametrize(
    ("low", "high", "multiple_of", "divisor"), [(8, 64, None, 3), (2, 4, None, 8), (10, 11, 12, 1), (8, 23, 8, 3)]
)
def test_no_batch_size_is_an_error(low: int, high: int, multiple_of: int | None, divisor: int) -> None:
    with pytest.raises(ValueError, match=f"between {low} and {high} is divisible by {divisor}"):
        BatchSizes(low=low, high=high, multiple_of=multiple_of, divisor=divisor)


def test_the_number_of_axes_is_fixed_and_pinned_values_are_none() -> None:
    names = [a.name for a in space().axes()]
    assert names == ["log2_global_batch_size", "effective_learning_rate"]
    searched = space(
        PiecewiseSpace(decays=3, boundaries=Interval(100, 5000), decay_factor=Interval(0.1, 0.5)),
        momentum=Interval(0.5, 0.99),
    )
    assert [a.name for a in searched.axes()] == [
        "log2_global_batch_size",
        "effective_learning_rate",
        "one_minus_momentum",
        "decay_boundary_1",
        "decay_boundary_2_fraction",
        "decay_boundary_3_fraction",
        "decay_factor",
    ]


def test_each_batch_size_is_taken_in_the_micro_batches_that_it_needs() -> None:
    space = SearchSpace(
        batch_sizes=BatchSizes(low=16, high=256, multiple_of=None, divisor=2),
        learning_rate=Interval(1e-3, 1.0),
        momentum=None,
        schedule=ConstantSpace(),
        accumulation=AsFewAsFit(replicas=2, largest_share=32, only_measured=True),
    )
    at = {"log2_global_batch_size": 8, "effective_learning_rate": 0.1}
    assert space.parameters(at).accumulation == 4
    assert space.parameters({**at, "log2_global_batch_size": 6}).accumulation == 1
    assert space.accumulated(replace(space.parameters(at), accumulation=1)) == space.parameters(at)
    assert not space.recommends_accumulated
    assert replace(space, accumulation=4).recommends_accumulated
