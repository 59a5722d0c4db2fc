"""The forecast command on a study that is stored; nothing is trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from scalesearch.cli import main
from scalesearch.core.profile import Profile, ProfileFingerprint, ProfilePoint, ReplicaProfile
from scalesearch.definition.profile_file import write_profile

from .conftest import WriteDefinition
from .past import past_study


def forecast(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["forecast", *arguments])


def eight_gpus(path: Path, *, workload: str = "digits/mlp", optimizer: str = "momentum") -> Path:
    """A profile file of a machine whose steps take 1 ms and 10 µs for each example of a replica."""
    parts = []
    for k in (1, 8):
        points = tuple(
            ProfilePoint(
                replicas=k,
                per_replica_batch_size=share,
                step_seconds=seconds,
                interval=(seconds, seconds),
                undisturbed_seconds=seconds,
                undisturbed_error=0.01,
                spread=0.01,
                blocks=9,
                steps=90,
                input_share=0.0,
                memory_bytes=None,
            )
            for share in (2, 4, 8, 16, 32, 64)
            if (seconds := 1e-3 + 1e-5 * share + (k > 1) * 2e-4)
        )
        parts.append(
            ReplicaProfile(
                replicas=k,
                largest_per_replica_batch_size=64,
                limited_by="memory",
                compile_seconds=1.0,
                points=points,
                seconds=9.0,
            )
        )
    fingerprint = ProfileFingerprint(
        hardware={"kind": "GPU", "device": "made up"},
        software={},
        workload={"name": workload, "optimizer": optimizer},
    )
    write_profile(Profile(fingerprint=fingerprint, by_replicas=tuple(parts)), path)
    return path


def test_a_forecast_from_the_step_times_of_the_trials(define: WriteDefinition) -> None:
    name = past_study(define())
    found = json.loads(forecast(name, "--replicas", "1,2,4", "--json").stdout)
    assert [r["replicas"] for r in found["forecast"]] == [1, 2, 4]
    one, two, four = found["forecast"]
    assert one["step_time_is"] == "profiled"
    assert two["step_time_is"] == four["step_time_is"] == "extrapolated"
    assert one["speed_up"] == 1.0
    assert one["seconds_interval"][0] < one["seconds_to_target"] < one["seconds_interval"][1]
    assert four["device_seconds"] == pytest.approx(4 * four["seconds_to_target"])
    assert four["per_replica_batch_size"] * 4 == four["global_batch_size"]
    assert any("2, 4 replicas" in a and "taken to cost nothing" in a for a in found["assumptions"])
    assert any("those of the trials, on 1 replica" in a for a in found["assumptions"])


def test_a_forecast_in_words_with_a_profile_of_another_machine(define: WriteDefinition) -> None:
    path = define()
    name, file = past_study(path), eight_gpus(path.parent / "eight.json")
    result = forecast(name, "--replicas", "1,8,16", "--profile", str(file))
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())
    assert "Forecast for digits/mlp from study digits-r1" in said
    assert "8: global batch" in said
    assert "no step was timed with 16 replicas" in said
    assert "What to set:" in said
    assert "trainings in the same time" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "there is no study 'nothing' in this storage; it holds: digits-r1"),
        (["digits-r1", "--replicas", "0"], "not a list of numbers of replicas"),
        (["digits-r1", "--profile", "other.json"], "is a profile of another workload than study digits-r1"),
        (["digits-r1", "--profile", "missing.json"], "missing.json: cannot be read"),
        (["digits-r1", "--replicas", "100000"], "no global batch size of digits-r1"),
    ],
)
def test_mistakes_are_named(define: WriteDefinition, arguments: list[str], said: str) -> None:
    path = define()
    past_study(path)
    eight_gpus(path.parent / "other.json", workload="mnist/mlp")
    result = forecast(*arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


def test_a_study_that_never_reached_its_target_is_nothing_to_go_by(define: WriteDefinition) -> None:
    result = forecast(past_study(define(), reaches=False))
    assert result.exit_code == 2
    assert "no trial reached the target" in result.output
