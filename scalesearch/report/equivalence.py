"""The verdict of an equivalence check in plain words, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scalesearch.core.equivalence import Difference, Part, Verdict

_WHY: dict[Part, str] = {
    Part.STATISTICS: (
        "batch normalisation ({parts}) takes its statistics over each replica's share, not over the global batch. "
        "BatchNormalization(synchronized=True) takes them over all; else results belong to the per-replica batch"
    ),
    Part.RANDOM: (
        "layers that draw random numbers ({parts}) draw others for each replica's share. That is as it should be: the "
        "runs differ as two seeds do"
    ),
    Part.OWN_LAYERS: (
        "your own layers ({parts}) compute over the examples that they are given together (a mean, a norm, a clipping), "
        "which are a replica's share"
    ),
    Part.AUGMENTATION: "the augmentation treats the examples of a share together, or draws random numbers of its own",
    Part.LOSS: (
        "the loss of an example depends on the others of its share, as where it averages or weighs over the batch that "
        "it is given: each replica does so for itself. Return one value per example that depends on that example only"
    ),
    Part.CLIPPING: "gradients are clipped ({parts}), which acts on something else than the global gradient",
    Part.OPTIMIZER: "the optimizer ({parts}) does not take the same step for the same global gradient on several replicas",
}


def verdict_lines(verdict: Verdict) -> Iterator[str]:
    """Whether they agree, and if not why, with the evidence."""
    n = verdict.replicas
    setting = (
        f"global batch {verdict.global_batch_size:,} on 1 and on {n} replicas, learning rate "
        f"{verdict.learning_rate:.4g}, {verdict.steps} steps"
    )
    if verdict.agrees:
        yield f"{n} replicas train as 1 does ({setting})"
        yield f"  {_apart(verdict.difference)}: rounding"
        return
    yield f"{n} replicas do not train as 1 does ({setting})"
    if not verdict.same_data:
        yield "  because the data are not the same in each process: load_data returns other examples, or another order"
        yield "  Seed what it draws or shuffles; the order of training is scalesearch's, a function of the study's seed"
        return
    if not verdict.same_start:
        yield "  because the initial weights are not the same in each process: build_model does not follow the seed"
        yield "  Use Keras's initializers without seeds of their own, or NumPy's or Python's random numbers"
        return
    yield f"  {_apart(verdict.difference)}"
    yield from _reasons(verdict)
    yield from _ruled_out(verdict)


def _reasons(verdict: Verdict) -> Iterator[str]:
    if verdict.repeated is not None and not verdict.repeated.agrees:
        twice = f"{verdict.replicas} replicas run twice differ by {_share(verdict.repeated.weights)}"
        yield f"  because it is not even repeatable: {twice}"
        yield "  Something draws random numbers that no seed governs, such as tf.random in a layer, a loss or an augmentation"
        return
    for part in verdict.causes:
        yield f"  because {_WHY[part].format(parts=verdict.parts[part])}"
        evidence = verdict.with_one[part]
        yield f"    evidence: all else neutralised, {_apart(evidence)}; with this neutralised too, {_rounding(verdict)}"
    if verdict.causes:
        return
    if verdict.without_any is not None and verdict.without_any.agrees:
        together = ", ".join(verdict.parts[part] for part in verdict.with_one)
        yield f"  No part makes a difference alone; without all of them there is none ({together}): they do so together"
    elif verdict.without_any is not None:
        yield f"  The cause was not found: with all suspected parts neutralised, {_apart(verdict.without_any)} still"
        yield "  Look for what the model's own call or train code does with the whole batch"


def _ruled_out(verdict: Verdict) -> Iterator[str]:
    yield "  ruled out: the data and their order (the same in both), the initial weights (the same in both)"
    innocent = [verdict.parts[p] for p, found in verdict.with_one.items() if found.agrees]
    if verdict.causes and innocent:
        yield f"  ruled out by experiment: {'; '.join(innocent)}"
    if verdict.accumulated is not None and verdict.accumulated.agrees:
        yield (
            f"  1 replica that accumulates {verdict.replicas} micro-batches gives what {verdict.replicas} replicas give "
            f"(to {verdict.accumulated.weights:.0e}): it is how the batch is divided, not the number of devices"
        )


def _apart(found: Difference) -> str:
    return f"weights differ by {_share(found.weights)} of their update, losses by {_share(found.loss)}"


def _rounding(verdict: Verdict) -> str:
    assert verdict.without_any is not None
    return f"by {_share(verdict.without_any.weights)}"


def _share(value: float) -> str:
    return f"{value:.1%}" if value >= 1e-3 else f"{value:.0e}"


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """A verdict as one JSON object; differences that are not finite are null."""
    return {
        "agrees": verdict.agrees,
        "replicas": verdict.replicas,
        "global_batch_size": verdict.global_batch_size,
        "learning_rate": verdict.learning_rate,
        "steps": verdict.steps,
        "difference": _difference_json(verdict.difference),
        "same_data": verdict.same_data,
        "same_start": verdict.same_start,
        "causes": [part.value for part in verdict.causes],
        "experiments": {
            "repeated": _difference_json(verdict.repeated),
            "accumulated": _difference_json(verdict.accumulated),
            "without_any": _difference_json(verdict.without_any),
            "with_one": {part.value: _difference_json(found) for part, found in verdict.with_one.items()},
        },
        "words": list(verdict_lines(verdict)),
    }


def _difference_json(found: Difference | None) -> dict[str, float | None] | None:
    if found is None:
        return None
    return {name: value if abs(value) < float("inf") else None for name, value in vars(found).items()}
