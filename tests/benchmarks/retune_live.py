"""How good is a retune with real training? One GPU to a made-up machine with eight, against a full study there.

    python tests/benchmarks/retune_live.py studies/fashion_mnist_mlp.toml --runs 40
    python tests/benchmarks/retune_live.py studies/digits_mlp.toml --runs 40 --seeds 0,1,2

The machine is a profile file: a step of b examples per GPU takes 1 ms + 10 µs · b, and with eight GPUs 0.4 ms more for their
synchronisation. Costs are steps times these. For each seed: a study on one of its GPUs; a study on eight with a budget of
`--runs` times what the first one recommends (in examples); a retune of the first to eight with a fifth of that. What the two
recommend is trained again with seeds that none of them has seen, and so is the first study's recommendation ("keep"). All by
the command line, as users do. Needs the package `tomli-w`.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import tomllib
from dataclasses import replace
from pathlib import Path

import click
import tomli_w
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from scalesearch.core.profile import Profile, ProfilePoint, ReplicaProfile
from scalesearch.core.step_time_model import StepTimeFormula, model_of
from scalesearch.definition.profile_file import read_profile, write_profile
from studies import FIRST_FRESH_SEED, Json, as_baseline, command_json, run_once

GPUS = 8
SHARE = 1 / 5  # of the full study's budget
MACHINE = StepTimeFormula(
    launch=1e-3,
    per_example=1e-5,
    saturation=1.0,
    contention=0.0,
    synchronisation=4e-4 / (2.0 * (GPUS - 1) / GPUS),
    growth="ring",
    accumulating=0.0,
)
ERROR = 0.01  # of the step times


@click.command(help=__doc__)
@click.argument("definition", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--runs", default=40.0, show_default=True, help="budget of the full study, in runs of the old optimum")
@click.option("--old-budget", default="40trials", show_default=True, help="of the study on one GPU")
@click.option("--seeds", default="0,1,2", show_default=True, help="of the studies")
@click.option("--fresh", default=5, show_default=True, help="fresh runs of each recommendation")
@click.option("--json", "as_json", is_flag=True, help="print the rows as JSON")
def main(definition: Path, runs: float, old_budget: str, seeds: str, fresh: int, as_json: bool) -> None:
    table = tomllib.loads(definition.read_text(encoding="utf-8"))
    table["objective"]["minimize"] = "seconds"
    rows = []
    for seed in map(int, seeds.split(",")):
        table["run"] = table.get("run", {}) | {"seed": seed}
        with tempfile.TemporaryDirectory() as folder:
            rows.append({"seed": seed} | _compared(table, Path(folder), runs, old_budget, fresh))
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    else:
        _show(rows)


def _compared(table: Json, folder: Path, runs: float, old_budget: str, fresh: int) -> Json:
    (folder / "old.toml").write_text(tomli_w.dumps(table | {"name": "old"}), encoding="utf-8")
    (folder / "full.toml").write_text(tomli_w.dumps(table | {"name": "full"}), encoding="utf-8")
    profile = _made_up_machine(folder)
    common = ["--profile", "machine.json", "--tracking-uri", "none", "--json"]
    old = command_json(["study", "old.toml", "--replicas", "1", "--budget", old_budget, *common], folder)
    assert old["recommendation"] is not None, "the study on one GPU reached nothing"
    budget = runs * old["recommendation"]["examples_to_target"]
    on_all = ["--replicas", str(GPUS), *common]
    full = command_json(["study", "full.toml", "--budget", f"{budget:.0f}ex", *on_all], folder)
    arguments = ["retune", "old.toml", "--from", "old-r1", "--budget", f"{SHARE * budget:.0f}ex"]
    retune = command_json([*arguments, *on_all], folder)
    per_step = model_of(profile).on(GPUS, micro_batches=lambda size: 1)

    def judged(study: Json) -> Json:
        found = study["recommendation"]
        if found is None:
            return {"seconds": None, "spent": study["budget"]["examples"]["spent"]}
        seeds = range(FIRST_FRESH_SEED, FIRST_FRESH_SEED + fresh)
        done = [run_once(table, as_baseline(found), seed, replicas=1) for seed in seeds]
        seconds = [r["steps_to_target"] * per_step(found["global_batch_size"]) if r else None for r in done]
        return {
            "global_batch_size": found["global_batch_size"],
            "learning_rate": found["learning_rate"],
            "seconds": seconds,
            "spent": study["budget"]["examples"]["spent"],
        }

    return {"budget": budget, "keep": judged(old), "full": judged(full), "retune": judged(retune)}


def _made_up_machine(folder: Path) -> Profile:
    """A profile file of the definition's workload, with the made-up times, in `folder`."""
    command_json(["profile", "old.toml", "--replicas", "1", "--limit", "1s", "--export", "here.json", "--json"], folder)
    here = read_profile(folder / "here.json")
    hardware = {"kind": "GPU", "device": "made up"}
    profile = Profile(
        fingerprint=replace(here.fingerprint, hardware=hardware), by_replicas=tuple(_part(k) for k in (1, GPUS))
    )
    write_profile(profile, folder / "machine.json")
    return profile


def _part(replicas: int) -> ReplicaProfile:
    return ReplicaProfile(
        replicas=replicas,
        largest_per_replica_batch_size=4096,
        limited_by="definition",
        compile_seconds=1.0,
        points=tuple(_point(replicas, 2**k) for k in range(13)),
        seconds=10.0,
    )


def _point(replicas: int, share: int) -> ProfilePoint:
    seconds = MACHINE.seconds(share=share, replicas=replicas, accumulation=1)
    return ProfilePoint(
        replicas=replicas,
        per_replica_batch_size=share,
        step_seconds=seconds,
        interval=(seconds * (1 - ERROR), seconds * (1 + ERROR)),
        undisturbed_seconds=seconds,
        undisturbed_error=ERROR,
        spread=ERROR,
        blocks=10,
        steps=100,
        input_share=0.0,
        memory_bytes=None,
    )


def _mean(judged: Json) -> float | None:
    """Seconds to target over the runs that got there; None if one did not."""
    seconds = judged["seconds"]
    return None if seconds is None or None in seconds else statistics.mean(seconds)


def _show(rows: list[Json]) -> None:
    table = Table("seed", "", "global batch", "learning rate", "seconds, fresh runs", "mean", "spent", box=SIMPLE_HEAD)
    table.title = f"One GPU to {GPUS}: a retune with a fifth of the budget of a full study"
    ratios = []
    for row in rows:
        for name in ("keep", "full", "retune"):
            judged, mean = row[name], _mean(row[name])
            each = ["missed" if s is None else f"{s:.3f}" for s in judged["seconds"] or ()]
            table.add_row(
                str(row["seed"]) if name == "keep" else "",
                name,
                str(judged.get("global_batch_size", "nothing reached")),
                f"{judged['learning_rate']:.4g}" if each else "",
                ", ".join(each),
                f"{mean:.3f}" if mean is not None else "",
                f"{judged['spent'] / row['budget']:.0%}" if name != "keep" else "",
            )
        full, retune = _mean(row["full"]), _mean(row["retune"])
        if full is not None and retune is not None:
            ratios.append(retune / full)
    console = Console(width=130)
    console.print(table)
    if ratios:
        each = ", ".join(f"{r:.2f}" for r in ratios)
        console.print(f"retune / full: {each}; median {statistics.median(ratios):.2f} (aim: 1.10 or less)")
    if len(ratios) < len(rows):
        console.print(f"in {len(rows) - len(ratios)} of {len(rows)} a run missed the target")


if __name__ == "__main__":
    sys.exit(main())
