from __future__ import annotations

import json
from dataclasses import replace

from rich.console import Console

from scalesearch.core.profile import Profile
from scalesearch.core.step_time_model import model_of
from scalesearch.report.profile import print_profile, profile_json, replica_lines
from tests.core.profiles import AFFINE, MACHINE, points, profile

SLOWER = replace(AFFINE, synchronisation=1e-3)
PROFILE = profile(
    [*points(SLOWER, shares=(8, 32, 128, 512), replicas=(1, 2)), *points(SLOWER, shares=(32,), accumulations=(4,))]
)


def printed(shown: Profile) -> str:
    console = Console(width=80, record=True, file=None, quiet=False)
    with console.capture() as captured:
        print_profile(console, shown, model_of(shown) if shown.points else None)
    return captured.get()


def test_every_size_has_a_row_that_fits_into_80_columns() -> None:
    text = printed(PROFILE)
    assert "…" not in text
    row = next(line for line in text.splitlines() if line.split()[:2] == ["512", "1,024"])
    assert row.split()[2:] == ["4.6", "ms", "±", "0.0%", "4.6", "ms", "225k", "78%", "10%", "1.0", "GiB"]
    assert any(line.split()[:4] == ["32", "×", "4", "128"] for line in text.splitlines())


def test_the_fit_and_what_it_does_not_know_are_said() -> None:
    text = " ".join(printed(PROFILE).split())
    assert "at least 1 ms; 5 µs per example" in text
    assert "synchronisation of 2 replicas 1 ms" in text
    assert "Error of the fit at sizes left out in turn: 0." in text
    assert "from its cost with 2 replicas alone" in text
    assert "share this machine's cores" not in text


def test_cpu_replicas_are_called_what_they_are() -> None:
    on_cpus = replace(PROFILE, fingerprint=replace(MACHINE, hardware={"kind": "CPU"}))
    assert "CPU replicas share this machine's cores and memory" in " ".join(printed(on_cpus).split())


def test_medians_that_are_not_well_known_are_counted() -> None:
    noisy = profile(points(AFFINE, shares=(8, 64), noise=0.2))
    assert "2 of 2 medians are not known within 3% (the worst within 20%)" in " ".join(printed(noisy).split())


def test_nothing_that_fits_is_said() -> None:
    nothing = replace(PROFILE.by_replicas[0], points=(), largest_per_replica_batch_size=0)
    assert list(replica_lines(nothing)) == ["no batch fits in memory, not even 1 example per replica"]
    assert "nothing was measured" in printed(replace(PROFILE, by_replicas=(nothing,)))


def test_json_has_every_point_and_the_model() -> None:
    found = json.loads(json.dumps(profile_json(PROFILE, model_of(PROFILE), reused=[2]), allow_nan=False))
    assert found["fingerprint"]["workload.name"] == "made/up"
    assert [(r["replicas"], r["reused"], len(r["points"])) for r in found["replicas"]] == [(1, False, 5), (2, True, 4)]
    first = found["replicas"][0]["points"][0]
    assert first["global_batch_size"] == 8
    assert first["scaling_efficiency"] == 1.0
    assert 0 < found["model"]["launch_seconds"] < 0.01
    assert profile_json(PROFILE, None, reused=[])["model"] is None
