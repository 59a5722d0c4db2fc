"""What holds for the repository as a whole."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE, TESTS = ROOT / "scalesearch", ROOT / "tests"
MODULES = sorted(
    path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if path.name not in ("__init__.py", "__main__.py")
)
HEAVY = ("tensorflow", "keras", "mlflow", "optuna", "ray", "matplotlib")


# Parts of a whole that is tested through its front: which file holds their tests.
TESTED_THROUGH = {
    "cli/check.py": "cli/test_check_command.py",
    "cli/expectation.py": "cli/test_retune_command.py",
    "cli/forecast.py": "cli/test_forecast_command.py",
    "cli/options.py": "cli/test_commands.py",
    "cli/profile.py": "cli/test_profile_command.py",
    "cli/retune.py": "cli/test_retune_command.py",
    "cli/retune_summary.py": "cli/test_retune_command.py",
    "cli/run.py": "cli/test_study_command.py",
    "cli/stop.py": "cli/test_study_command.py",
    "cli/study_profile.py": "cli/test_profile_command.py",
    "cli/summary.py": "cli/test_study_command.py",
    "cli/workers.py": "cli/test_profile_command.py",
    "core/axis.py": "core/test_space.py",
    "core/race.py": "core/test_retune.py",
    "core/schedule_space.py": "core/test_space.py",
    "execution/messages.py": "execution/test_local.py",
    "execution/tasks.py": "execution/test_local.py",
    "execution/worker.py": "execution/test_local.py",
    "report/forecast.py": "cli/test_forecast_command.py",
    "study/account.py": "study/test_budget.py",
    "study/events.py": "study/test_outcomes.py",
    "study/past.py": "cli/test_forecast_command.py",
    "study/planning.py": "study/test_outcomes.py",
    "study/protocols.py": "study/scripted.py",
    "study/run.py": "study/test_outcomes.py",
    "study/running.py": "study/test_outcomes.py",
    "study/snapshot_times.py": "study/test_snapshots.py",
    "tracking/study_copy.py": "tracking/test_tracker.py",
    "tracking/writer.py": "tracking/test_tracker.py",
    "workloads/catalog.py": "workloads/test_load.py",
    "workloads/images.py": "workloads/test_idx.py",
    "workloads/workload.py": "workloads/test_load.py",
}


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_every_module_has_a_test_file_of_its_name(module: Path) -> None:
    own = module.with_name(f"test_{module.name}")
    tests = TESTED_THROUGH.get(module.as_posix(), own.as_posix())
    assert (TESTS / tests).is_file()
    assert own.as_posix() == tests or not (TESTS / own).is_file(), f"{own} exists: {module} needs no other entry"


@pytest.mark.parametrize(
    "module", ["scalesearch", "scalesearch.cli", "scalesearch.core.recommend", "scalesearch.definition"]
)
def test_importing_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_help_is_there_at_once() -> None:
    """The fastest of three, as the machine may be busy."""
    seconds = []
    for _ in range(3):
        started = time.monotonic()
        command = [sys.executable, "-m", "scalesearch", "--help"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        seconds.append(time.monotonic() - started)
        assert "study" in done.stdout
    assert min(seconds) < 0.7
