"""Laws that every built-in workload holds."""

from __future__ import annotations

import subprocess
import sys

import pytest

from scalesearch.workloads import BUILT_IN, describe, load_workload


def test_listing_and_making_workloads_loads_no_heavy_library() -> None:
    program = (
        "import sys\n"
        "from scalesearch.workloads import BUILT_IN, describe, load_workload\n"
        "for name in BUILT_IN: describe(name), load_workload(name)\n"
        "print({'tensorflow', 'keras', 'sklearn', 'mlflow', 'optuna'} & set(sys.modules))\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_workload_knows_its_own_name(name: str) -> None:
    assert load_workload(name).name == name


@pytest.mark.parametrize("name", BUILT_IN)
def test_description_shows_every_option_with_its_default(name: str) -> None:
    description = describe(name)
    assert description.options
    assert load_workload(name, description.options).name == description.name == name
