"""A trial that is restored goes on as if nothing had happened; a file that is not whole and ours is an error."""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from safetensors import safe_open
from safetensors.numpy import save_file

from scalesearch.core.evaluation import EvaluationPlan
from scalesearch.core.noise_scale import GradientNoise
from scalesearch.core.parameters import Parameters
from scalesearch.core.results import Measurement
from scalesearch.core.schedule import Constant, Linear, Piecewise
from scalesearch.errors import OutOfMemory, SnapshotError
from scalesearch.training.checkpoints import Fingerprint, Snapshot, data_digest, load, save
from scalesearch.training.engine import MirroredTrainer
from scalesearch.workloads.workload import Augmentation, Data, Split

from .tiny import (
    CONV,
    DENSE,
    EXAMPLES,
    IMAGES,
    classifier,
    conv,
    difference,
    float16_dense,
    images,
    momentum_trainer,
    plan,
    trained,
    trainer,
    weights,
)

BATCH = 16
MIDDLE, END = 4, 10  # steps; an epoch has 3.3 of them, so the snapshot lies in the second and the end in the fourth
PARAMETERS = Parameters(global_batch_size=BATCH, schedule=Linear(learning_rate=0.2, decay_examples=100, end_factor=0.1))
PLAN = plan(batch=BATCH, steps=END, every=2)
FINGERPRINT = Fingerprint(workload="tiny", options={"units": [8, 8], "rate": 0.5}, optimizer="momentum", data="d1")
EVERYTHING = classifier(
    "everything", conv, keras.layers.BatchNormalization, keras.layers.ReLU, lambda: keras.layers.Dropout(0.5)
)
SHALLOW = replace(DENSE, build_model=lambda: keras.Sequential(DENSE.build_model().layers[:-1]))


def brighten(inputs: Any, uniforms: Any) -> Any:
    return inputs + uniforms[:, 0, None, None, None]


BRIGHTENED = replace(EVERYTHING, augmentation=Augmentation(random_numbers=1, apply=brighten))


def everything_trainer(optimizer: str, replicas: int) -> Callable[[], MirroredTrainer]:
    return lambda: trainer(EVERYTHING, replicas=replicas, optimizer=optimizer)


PLAIN: Mapping[str, Callable[[], MirroredTrainer]] = {
    f"{optimizer}, {replicas} replicas": everything_trainer(optimizer, replicas)
    for optimizer in ("momentum", "nesterov", "adam")
    for replicas in (1, 2)
}
CASES: Mapping[str, Callable[[], MirroredTrainer]] = {
    **PLAIN,
    "streamed": lambda: trainer(BRIGHTENED, replicas=2, optimizer="momentum", resident_bytes_limit=1000),
    "augmented": lambda: trainer(BRIGHTENED, replicas=2, optimizer="momentum"),
    "loss scale": lambda: trainer(replace(DENSE, build_model=float16_dense), replicas=2, optimizer="adam"),
}
case_trainer = cache(lambda name: CASES[name]())


def parameters(momentum: float | None = 0.8, accumulation: int = 1) -> Parameters:
    return replace(PARAMETERS, momentum=momentum, accumulation=accumulation)


def uninterrupted(
    used: MirroredTrainer, parameters: Parameters, *, plan: EvaluationPlan = PLAN
) -> tuple[list[Measurement], Snapshot, Snapshot]:
    """The measurements after the middle, the snapshot in the middle, and the one at the end."""
    later: list[Measurement] = []
    for measurement in used.train(parameters, seed=5, plan=plan):
        if measurement.step == MIDDLE:
            middle = used.snapshot()
        elif measurement.step > MIDDLE:
            later.append(measurement)
    return later, middle, used.snapshot()


def without_seconds(measured: list[Measurement]) -> list[tuple[Any, ...]]:
    return [(m.step, m.examples, m.train_loss, m.metrics) for m in measured]


def bits(values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    return [(value.dtype, value.shape, value.tobytes()) for value in values]


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_a_restored_run_goes_on_bit_for_bit(case: str, accumulation: int, tmp_path: Path) -> None:
    used, path = case_trainer(case), tmp_path / "middle"
    later, middle, end = uninterrupted(used, parameters(accumulation=accumulation))
    save(middle, path, fingerprint=FINGERPRINT)
    list(used.train(parameters(0.3), seed=6, plan=PLAN))  # another trial leaves nothing behind
    loaded = load(path, fingerprint=FINGERPRINT)
    restored = list(used.train(parameters(accumulation=accumulation), seed=5, plan=PLAN, start=loaded))
    assert [m.step for m in restored] == [6, 8, 10]
    assert without_seconds(restored) == without_seconds(later)
    assert bits(used.snapshot().values) == bits(end.values)
    assert bits(middle.values) != bits(end.values)


@pytest.fixture(scope="module")
def continued_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Snapshot]]:
    """A folder in which another process has carried the plain cases from the middle to the end, and the ends found here."""
    folder, ends = tmp_path_factory.mktemp("snapshots"), {}
    for case in PLAIN:
        _, middle, ends[case] = uninterrupted(case_trainer(case), parameters())
        save(middle, folder / f"{case}, middle", fingerprint=FINGERPRINT)
    code = f"import training.conftest; from training.test_checkpoints import go_on; go_on({str(folder)!r})"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])
    return folder, ends


def go_on(folder: str) -> None:
    """What the other process does."""
    for case in PLAIN:
        used, start = case_trainer(case), load(Path(folder) / f"{case}, middle", fingerprint=FINGERPRINT)
        list(used.train(parameters(), seed=5, plan=PLAN, start=start))
        save(used.snapshot(), Path(folder) / f"{case}, end", fingerprint=FINGERPRINT)


@pytest.mark.parametrize("case", PLAIN)
def test_another_process_goes_on_bit_for_bit(case: str, continued_elsewhere: tuple[Path, dict[str, Snapshot]]) -> None:
    folder, ends = continued_elsewhere
    found, wanted = load(folder / f"{case}, end", fingerprint=FINGERPRINT), ends[case]
    assert bits(found.values) == bits(wanted.values)
    assert without_seconds([found.measurement]) == without_seconds([wanted.measurement])


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("dense", (1, 1), (2, 1)),
        ("conv", (2, 1), (1, 1)),
        ("conv", (2, 1), (4, 2)),
        ("ghost", (2, 2), (4, 1)),  # a replica is a micro-batch
        ("ghost", (4, 1), (1, 4)),
        ("dropout", (1, 4), (2, 2)),
        ("synchronized", (4, 1), (2, 1)),
    ],
)
def test_a_run_goes_on_with_other_replicas(name: str, before: tuple[int, int], after: tuple[int, int]) -> None:
    middle = None
    for (replicas, accumulation), steps in ((before, 2), (after, 4)):
        used = momentum_trainer(name, replicas)
        run = Parameters(
            global_batch_size=32, schedule=Constant(learning_rate=0.5), momentum=0.8, accumulation=accumulation
        )
        list(used.train(run, seed=5, plan=plan(batch=32, steps=steps), start=middle))
        middle = used.snapshot()
    assert middle is not None
    assert (middle.measurement.step, middle.replicas) == (4, after[0])
    assert difference(weights(used), trained(name, replicas=before[0], accumulation=before[1])) < 1e-5


@pytest.mark.parametrize("boundaries", [(75, 110), (MIDDLE * BATCH,)])
@pytest.mark.parametrize("case", PLAIN)
def test_a_fork_of_a_constant_trunk_equals_the_unshared_run_bit_for_bit(case: str, boundaries: tuple[int, ...]) -> None:
    used = case_trainer(case)
    schedule = Piecewise(learning_rate=0.2, decay_factor=0.1, boundaries=boundaries)
    fork, fork_plan = replace(parameters(), schedule=schedule), replace(PLAN, boundaries=boundaries)
    unshared, _, end = uninterrupted(used, fork, plan=fork_plan)
    trunk = replace(fork, schedule=Constant(learning_rate=0.2))
    _, middle, trunk_end = uninterrupted(used, trunk)
    forked = list(used.train(fork, seed=5, plan=fork_plan, start=middle))
    assert without_seconds(forked) == without_seconds(unshared)
    assert bits(used.snapshot().values) == bits(end.values)
    assert bits(trunk_end.values) != bits(end.values)


def test_a_fork_of_a_fork_equals_the_unshared_run_bit_for_bit() -> None:
    used = case_trainer("adam, 2 replicas")
    start, runs = None, {}
    for boundaries, until in (((70, 150), 2), ((50, 150), MIDDLE), ((50, 100), END)):
        schedule = Piecewise(learning_rate=0.2, decay_factor=0.1, boundaries=boundaries)
        run = replace(parameters(), schedule=schedule)
        unshared = list(used.train(run, seed=5, plan=PLAN))
        end = used.snapshot()
        for measurement in used.train(run, seed=5, plan=PLAN, start=start):
            runs[measurement.step] = measurement
            if measurement.step == until:
                break
        start = used.snapshot()
    assert without_seconds(list(runs.values())) == without_seconds(unshared)
    assert bits(start.values) == bits(end.values)


def test_seconds_go_on_from_the_snapshot() -> None:
    used = case_trainer("momentum, 1 replicas")
    _, middle, _ = uninterrupted(used, parameters())
    measurement = replace(middle.measurement, train_seconds=1000.0, elapsed_seconds=2000.0)
    started = perf_counter()
    restored = list(used.train(parameters(), seed=5, plan=PLAN, start=replace(middle, measurement=measurement)))
    took = perf_counter() - started
    assert 1000.0 < restored[0].train_seconds < restored[-1].train_seconds < 1000.0 + took
    assert 2000.0 < restored[0].elapsed_seconds < restored[-1].elapsed_seconds < 2000.0 + took


def test_a_snapshot_stays_what_it_was() -> None:
    used = case_trainer("momentum, 2 replicas")
    run = used.train(parameters(), seed=5, plan=PLAN)
    first = next(run)
    taken = used.snapshot()
    before = bits(taken.values)
    list(run)
    assert bits(taken.values) == before
    assert taken.measurement is first


def test_a_snapshot_of_a_stopped_run_is_that_of_its_last_measurement() -> None:
    used = case_trainer("momentum, 1 replicas")
    _, middle, _ = uninterrupted(used, parameters())
    stopped = used.train(parameters(), seed=5, plan=PLAN)
    while next(stopped).step < MIDDLE:
        pass
    stopped.close()  # type: ignore[attr-defined]
    used.evaluate("test")
    assert bits(used.snapshot().values) == bits(middle.values)


def test_there_is_no_snapshot_within_a_step() -> None:
    failing: list[bool] = []

    def fail(inputs: Any) -> Any:
        if failing:
            raise MemoryError("no room")  # TensorFlow makes a ResourceExhaustedError of it
        return inputs

    def apply(inputs: Any, uniforms: Any) -> Any:
        return tf.ensure_shape(tf.numpy_function(fail, [inputs], tf.float32), inputs.shape)

    used = trainer(replace(DENSE, augmentation=Augmentation(random_numbers=0, apply=apply)), optimizer="momentum")
    with pytest.raises(RuntimeError, match="just yielded a measurement"):
        used.snapshot()
    run = used.train(parameters(), seed=5, plan=PLAN)
    next(run)
    used.snapshot()
    failing.append(True)
    with pytest.raises(OutOfMemory):
        next(run)
    with pytest.raises(RuntimeError, match="just yielded a measurement"):
        used.snapshot()


@pytest.mark.parametrize(
    ("change", "seed", "message"),
    [
        ({}, 6, "`seed` 5, which cannot go on with 6"),
        ({"global_batch_size": 32}, 5, "`global_batch_size` 16, which cannot go on with 32"),
        ({"momentum": 0.9}, 5, "`momentum` 0.8, which cannot go on with 0.9"),
        ({"schedule": Constant(learning_rate=0.2)}, 5, "after 4 steps.* differ from step 1 on"),
        ({"schedule": Constant(learning_rate=0.1)}, 5, "after 4 steps.* differ from step 0 on"),
        ({"schedule": Linear(learning_rate=0.2, decay_examples=99, end_factor=0.1)}, 5, "differ from step 1 on"),
    ],
)
def test_another_run_does_not_go_on_from_a_snapshot(change: dict[str, Any], seed: int, message: str) -> None:
    used = case_trainer("momentum, 1 replicas")
    _, middle, end = uninterrupted(used, parameters())
    with pytest.raises(SnapshotError, match=message):
        next(used.train(replace(parameters(), **change), seed=seed, plan=PLAN, start=middle))
    assert bits(used.snapshot().values) == bits(end.values)  # nothing was touched


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (CONV, r"conv/conv2d\w*/kernel is float32\[72, 8\] in it, but float32\[3, 3, 2, 4\] here"),
        (SHALLOW, r"it holds 9 variables, they have 5"),
    ],
)
def test_a_snapshot_of_another_model_is_refused(other: Any, message: str, tmp_path: Path) -> None:
    used, path = momentum_trainer("dense", 1), tmp_path / "dense"
    list(used.train(parameters(), seed=5, plan=plan(batch=BATCH, steps=1)))
    save(used.snapshot(), path, fingerprint=FINGERPRINT)
    loaded = load(path, fingerprint=FINGERPRINT)
    with pytest.raises(SnapshotError, match=f"snapshot {path} does not fit the model and its optimizer: {message}"):
        next(trainer(other, optimizer="momentum").train(parameters(), seed=5, plan=PLAN, start=loaded))


# Files


def a_snapshot(**changes: Any) -> Snapshot:
    """Of all types that variables have, with all that is not a plain number."""
    values = (
        np.array([[1.5, -0.0, math.nan], [math.inf, 1e-45, 1 / 3]], np.float32),
        np.array(7, np.int64),
        np.array([3, 2**32 - 1], np.uint32),
        np.array([0.1, -math.inf], tf.bfloat16.as_numpy_dtype),
        np.array([[0.1], [6e-8]], np.float16),
        np.array([True, False]),
        np.zeros((0, 3), np.float32),
    )
    measurement = Measurement(
        step=3,
        examples=48,
        train_seconds=0.1,
        elapsed_seconds=1 / 3,
        train_loss=math.nan,
        metrics={"val/loss": math.inf, "val/x": 0.1},
        noise=GradientNoise(trace=0.1, squared_norm=-1 / 3, samples=2),
    )
    schedule = Piecewise(learning_rate=1 / 3, decay_factor=0.1, boundaries=(48, 900))
    run = Parameters(global_batch_size=BATCH, schedule=schedule, momentum=0.9, accumulation=2)
    given = {"parameters": run, "seed": 2**40, "replicas": 4, "measurement": measurement, "values": values}
    return Snapshot(**{**given, **changes})


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "snapshot"
    save(a_snapshot(), path, fingerprint=FINGERPRINT)
    return path


def test_a_file_gives_back_what_was_saved(saved: Path) -> None:
    loaded, wanted = load(saved, fingerprint=FINGERPRINT), a_snapshot()
    assert bits(loaded.values) == bits(wanted.values)
    assert (loaded.parameters, loaded.seed, loaded.replicas) == (wanted.parameters, wanted.seed, wanted.replicas)
    assert repr(loaded.measurement) == repr(wanted.measurement)  # NaN is not equal to itself
    assert loaded.path == saved
    assert [entry.name for entry in saved.parent.iterdir()] == ["snapshot"]


def test_values_need_not_be_contiguous(tmp_path: Path) -> None:
    value = np.arange(12.0).reshape(3, 4).T[::2]
    save(a_snapshot(values=(value,)), tmp_path / "s", fingerprint=FINGERPRINT)
    assert np.array_equal(load(tmp_path / "s", fingerprint=FINGERPRINT).values[0], value)


def test_values_keep_their_order(tmp_path: Path) -> None:
    values = tuple(np.array(i, np.float32 if i % 2 else np.int64) for i in range(120))
    save(a_snapshot(values=values), tmp_path / "s", fingerprint=FINGERPRINT)
    assert bits(load(tmp_path / "s", fingerprint=FINGERPRINT).values) == bits(values)


def test_a_file_is_hardly_larger_than_its_values(tmp_path: Path) -> None:
    values = tuple(np.ones(10_000, np.float32) for _ in range(10))
    save(a_snapshot(values=values), tmp_path / "s", fingerprint=FINGERPRINT)
    assert (tmp_path / "s").stat().st_size < 1.01 * sum(value.nbytes for value in values)


def assert_refused(path: Path, *, why: str = "") -> None:
    with pytest.raises(SnapshotError) as error:
        load(path, fingerprint=FINGERPRINT)
    assert str(path) in str(error.value)
    assert why in str(error.value)


def test_no_truncated_file_is_read(saved: Path) -> None:
    content = saved.read_bytes()
    for length in range(0, len(content), 7):
        saved.write_bytes(content[:length])
        assert_refused(saved)


@pytest.mark.parametrize("flip", [0x01, 0x20])
def test_no_file_with_a_damaged_byte_is_read(saved: Path, flip: int) -> None:
    content = saved.read_bytes()
    for position in range(len(content)):
        saved.write_bytes(content[:position] + bytes([content[position] ^ flip]) + content[position + 1 :])
        assert_refused(saved)


def test_no_foreign_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "foreign"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(1000))
    assert_refused(path)
    with path.open("wb") as file:
        np.savez(file, values=np.ones(3))
    assert_refused(path)
    for metadata in (None, {"format": "pt"}, {"format": "scalesearch snapshot", "version": "1"}):
        save_file({"weight": np.ones(3)}, path, metadata=metadata)
        assert_refused(path, why="is not a snapshot of scalesearch")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert_refused(tmp_path / "missing", why="cannot be read: No such file or directory")
    assert_refused(tmp_path, why="cannot be read")


def test_a_file_of_another_version_is_refused(saved: Path) -> None:
    with safe_open(saved, framework="numpy") as file:
        metadata = {**file.metadata(), "version": "2"}
    save_file({}, saved, metadata=metadata)
    assert_refused(saved)
    with pytest.raises(SnapshotError, match=r"has format version 2, but this scalesearch reads version 1"):
        load(saved, fingerprint=FINGERPRINT)


@pytest.mark.parametrize(
    "change",
    [
        {"workload": "tony"},
        {"options": {"units": [8, 9], "rate": 0.5}},
        {"options": {}},
        {"optimizer": "nesterov"},
        {"data": "d2"},
    ],
)
def test_a_file_of_another_workload_is_refused(saved: Path, change: dict[str, Any]) -> None:
    [(name, value)] = change.items()
    with pytest.raises(SnapshotError) as error:
        load(saved, fingerprint=replace(FINGERPRINT, **change))
    assert f"snapshot {saved} is of another workload or other data: `{name}` is " in str(error.value)
    assert f"but {json.loads(json.dumps(value))!r} here" in str(error.value)


def test_options_are_compared_as_they_are_written(saved: Path) -> None:
    load(saved, fingerprint=replace(FINGERPRINT, options={"rate": 0.5, "units": (8, 8)}))


@contextmanager
def no_file_larger_than(limit: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_that_cannot_be_written_leaves_the_one_before(saved: Path) -> None:
    large = a_snapshot(values=(np.ones(2**20, np.float32),))
    with no_file_larger_than(2**20), pytest.raises(SnapshotError, match=f"{saved} cannot be written: File too large"):
        save(large, saved, fingerprint=FINGERPRINT)
    assert [entry.name for entry in saved.parent.iterdir()] == ["snapshot"]
    assert bits(load(saved, fingerprint=FINGERPRINT).values) == bits(a_snapshot().values)


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="cannot be written: No such file or directory"):
        save(a_snapshot(), tmp_path / "missing" / "snapshot", fingerprint=FINGERPRINT)


def test_what_a_killed_writer_left_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "snapshot.partial").write_bytes(b"half")
    save(a_snapshot(), tmp_path / "snapshot", fingerprint=FINGERPRINT)
    assert [entry.name for entry in tmp_path.iterdir()] == ["snapshot"]
    load(tmp_path / "snapshot", fingerprint=FINGERPRINT)


# The digest of data


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("part", ["inputs", "labels"])
def test_any_changed_example_changes_the_digest(split: str, part: str) -> None:
    for example in (0, 5, -1):
        before: Split = getattr(IMAGES, split)
        changed = getattr(before, part).copy()
        changed[example] += 1
        assert data_digest(replace(IMAGES, **{split: replace(before, **{part: changed})})) != data_digest(IMAGES)


def test_other_data_have_another_digest() -> None:
    swapped = replace(IMAGES, train=IMAGES.validation, validation=IMAGES.train)
    reshaped = replace(IMAGES.train, inputs=IMAGES.train.inputs.reshape(EXAMPLES, 72))
    others = [swapped, replace(IMAGES, test=None), replace(IMAGES, train=reshaped)]
    assert len({data_digest(data) for data in (IMAGES, *others)}) == 4


def test_where_the_data_lie_does_not_change_the_digest(tmp_path: Path) -> None:
    np.save(tmp_path / "inputs.npy", IMAGES.train.inputs)
    mapped = replace(IMAGES.train, inputs=np.load(tmp_path / "inputs.npy", mmap_mode="r"))
    assert data_digest(replace(IMAGES, train=mapped)) == data_digest(IMAGES)
    assert data_digest(replace(IMAGES, train=images(EXAMPLES, seed=1))) == data_digest(IMAGES)


def test_the_digest_of_a_terabyte_reads_a_part_of_it() -> None:
    inputs = np.broadcast_to(np.zeros((1, 2**20), np.uint8), (2**20, 2**20))
    huge = Split(inputs=inputs, labels=np.zeros(3, np.int32))
    started = perf_counter()
    data_digest(Data(train=huge, validation=IMAGES.validation))
    assert perf_counter() - started < 10
