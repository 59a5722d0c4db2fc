"""That the benchmark of the search runs, and that its accounts and its measure are right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("search.py")
WORKLOAD = """
[tiny]
target = 0.5
train_examples = 2000
spectrum = { dimension = 50, modes = 12 }
gradient_noise = { variance = 5.0 }
step_time = { saturation_batch = 32.0 }
study = { decays = 1 }
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("workloads") / "mine.toml"
    path.write_text(WORKLOAD)
    return path


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


def test_the_rows_of_two_methods(file: Path) -> None:
    names = ["random", "tpe+cap+stop"]
    chosen = ["--methods", ",".join(names), "--budgets", "1,40", "--seeds", "2"]
    done = run("--workloads", str(file), *chosen, "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [(r["set"], r["workload"], r["method"], r["budget"], r["seeds"]) for r in rows] == [
        ("mine", "tiny", method, budget, 2) for method in names for budget in (1.0, 40.0)
    ]
    for row in rows:
        assert -0.1 < row["median"] <= row["p90"] <= 3.0
        assert row["median_interval"][0] <= row["median"] <= row["median_interval"][1]
        assert 0.0 <= row["missed"] <= 1.0
    assert rows[3]["median"] < 3.0


def test_a_mistake_in_the_file_is_named(file: Path) -> None:
    wrong = file.with_name("wrong.toml")
    wrong.write_text(WORKLOAD.replace("spectrum", "spektrum"))
    done = run("--workloads", str(wrong))
    assert done.returncode != 0
    assert "wrong.toml: tiny: unknown key `spektrum`: did you mean `spectrum`?" in done.stderr


def test_an_unknown_method_is_refused() -> None:
    done = run("--methods", "magic")
    assert done.returncode != 0
    assert "cannot run magic here; known: random" in done.stderr
