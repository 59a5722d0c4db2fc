from __future__ import annotations

from scalesearch.core.profile import ProfileFingerprint
from scalesearch.training.machine import fingerprint

from . import tiny


def of(name: str, replicas: int = 1, **options: object) -> ProfileFingerprint:
    return fingerprint(tiny.momentum_trainer(name, replicas), workload=f"tiny/{name}", options=options)


def test_it_says_what_a_profile_is_of() -> None:
    found = of("dense", width=3)
    assert found.hardware["kind"] == "CPU"
    assert int(found.hardware["cores"]) >= 1
    assert {"tensorflow", "keras", "scalesearch"} == set(found.software)
    assert found.workload["name"] == "tiny/dense"
    assert found.workload["options"] == '{"width": 3}'
    assert found.workload["optimizer"] == "momentum"
    assert found.workload["example"] == "uint8[6, 6, 2]"


def test_replicas_are_no_part_of_it_and_the_model_is() -> None:
    assert of("dense", 1) == of("dense", 2)
    assert of("dense").workload["model"] != of("conv").workload["model"]
    assert of("dropout").workload["model"] != of("conv").workload["model"]
