"""What is a study's recommendation worth? Samplers on one definition at the same budget, confirmed by fresh runs.

    python tests/benchmarks/studies.py studies/fashion_mnist_mlp.toml --budget 3m

Each sampler runs a study of its own, then its recommendation is trained again with seeds that no study has seen, and so
is the baseline: all by the command line, as users do. Needs the package `tomli-w`. On a machine that others use, seconds
vary: steps are printed beside them.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import tomli_w
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

FIRST_FRESH_SEED = 1000
NOT_REACHED = 3  # exit code of a study that has nothing to recommend

Json = dict[str, Any]


@click.command(help=__doc__)
@click.argument("definition", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--budget", default="3m", show_default=True, help="of each study")
@click.option("--samplers", default="scaling,tpe", show_default=True)
@click.option("--seeds", default=3, show_default=True, help="fresh runs of each recommendation")
@click.option("--replicas", type=int, default=1, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="print the rows as JSON")
def main(definition: Path, budget: str, samplers: str, seeds: int, replicas: int, as_json: bool) -> None:
    table = tomllib.loads(definition.read_text(encoding="utf-8"))
    rows = [_row("baseline", None, table["baseline"], table, seeds, replicas)]
    for sampler in samplers.split(","):
        searched = table | {"search": table["search"] | {"sampler": sampler}}
        study = _study(searched, ["--budget", budget], replicas)
        found = study["recommendation"]
        rows.append(_row(sampler, study, found and as_baseline(found), table, seeds, replicas))
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    else:
        _show(rows, budget)


def _row(name: str, study: Json | None, parameters: Json | None, table: Json, seeds: int, replicas: int) -> Json:
    """One sampler's recommendation with its fresh runs."""
    fresh = range(FIRST_FRESH_SEED, FIRST_FRESH_SEED + seeds)
    runs = [run_once(table, parameters, seed, replicas) for seed in fresh] if parameters else []
    return {
        "name": name,
        "trials": sum(study["outcomes"].values()) if study else None,
        "outcomes": study["outcomes"] if study else None,
        "parameters": parameters,
        "promised": study["recommendation"]["cost"] if study and study["recommendation"] else None,
        "runs": runs,
    }


def run_once(table: Json, parameters: Json, seed: int, replicas: int) -> Json | None:
    """Steps and seconds to target of one run, and its test metrics; None: the target was not reached."""
    alone = {k: v for k, v in table.items() if k != "budget"} | {
        "baseline": parameters,
        "run": table.get("run", {}) | {"seed": seed},
    }
    return _study(alone, ["--budget", "1trials"], replicas)["baseline"]


def as_baseline(found: Json) -> Json:
    """A recommendation as the section of a definition."""
    section = {k: found[k] for k in ("global_batch_size", "learning_rate", "momentum") if found[k] is not None}
    if found["schedule"] == "piecewise":
        boundaries = [f"{examples} examples" for examples in found["decay_boundaries_examples"]]
        return section | {"boundaries": boundaries, "decay_factor": found["decay_factor"]}
    if found["schedule"] == "linear":
        decay = f"{found['decay_boundaries_examples'][0]} examples"
        return section | {"decay_examples": decay, "end_factor": found["end_factor"]}
    return section


def _study(table: Json, options: list[str], replicas: int) -> Json:
    """The JSON that a new study prints, run in a folder of its own."""
    with _folder_with(table) as folder:
        return command_json(["study", "study.toml", "--json", "--replicas", str(replicas), *options], Path(folder))


def command_json(arguments: list[str], folder: Path) -> Json:
    """What a command prints with `--json`, run in `folder`."""
    command = [sys.executable, "-m", "scalesearch", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode not in (0, NOT_REACHED):
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    found: Json = json.loads(done.stdout)
    return found


@contextmanager
def _folder_with(table: Json) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "study.toml").write_text(tomli_w.dumps(table), encoding="utf-8")
        yield folder


def _show(rows: list[Json], budget: str) -> None:
    columns = ("", "trials", "global batch", "learning rate", "boundaries", "promised", "fresh runs: seconds", "steps")
    table = Table(*columns, title=f"Recommendations after {budget} each, and fresh runs of them", box=SIMPLE_HEAD)
    for row in rows:
        parameters = row["parameters"] or {}
        table.add_row(
            row["name"],
            str(row["trials"] or ""),
            str(parameters.get("global_batch_size", "nothing reached")),
            f"{parameters['learning_rate']:.4g}" if parameters else "",
            ", ".join(parameters.get("boundaries", [])),
            f"{row['promised']:.3g}" if row["promised"] else "",
            _numbers(row["runs"], "seconds_to_target"),
            _numbers(row["runs"], "steps_to_target"),
        )
    Console(width=160).print(table)


def _numbers(runs: list[Json | None], key: str) -> str:
    values = [run[key] if run else None for run in runs]
    reached = [v for v in values if v is not None]
    each = ", ".join("missed" if v is None else f"{v:,.3g}" if v < 100 else f"{v:,.0f}" for v in values)
    return each + (f" (median {statistics.median(reached):,.3g})" if reached else "")


if __name__ == "__main__":
    main()
