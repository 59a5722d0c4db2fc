"""A recommendation as code to paste into a Keras script under MirroredStrategy."""

from __future__ import annotations

from scalesearch.core.parameters import Parameters
from scalesearch.core.schedule import Linear, Piecewise, first_step_from

_OPTIMIZERS = {
    "sgd": "keras.optimizers.SGD(learning_rate)",
    "momentum": "keras.optimizers.SGD(learning_rate, momentum={momentum:.6g})",
    "nesterov": "keras.optimizers.SGD(learning_rate, momentum={momentum:.6g}, nesterov=True)",
    "adam": "keras.optimizers.Adam(learning_rate, beta_1={momentum:.6g})",
    "adamw": "keras.optimizers.AdamW(learning_rate, beta_1={momentum:.6g})",
    "workload": "...  # your workload's own optimizer, with this learning_rate",
}


def keras_code(parameters: Parameters, *, optimizer: str, replicas: int) -> str:
    """Python source: strategy, batch size, schedule in steps, optimizer."""
    per_replica = parameters.per_replica_batch_size(replicas)
    lines = [
        f"strategy = tf.distribute.MirroredStrategy()  # {replicas} replica{'s' if replicas > 1 else ''}",
        f"global_batch_size = {parameters.global_batch_size}  # {per_replica} per replica; "
        "this is the batch size that Dataset.batch and fit take",
        *_schedule(parameters),
        "with strategy.scope():",
        f"    optimizer = {_OPTIMIZERS[optimizer].format(momentum=parameters.momentum or 0.0)}",
    ]
    if parameters.accumulation > 1:
        lines.insert(2, f"# measured with {parameters.accumulation} micro-batches per replica and step")
    return "\n".join(lines)


def _schedule(parameters: Parameters) -> list[str]:
    schedule, size = parameters.schedule, parameters.global_batch_size
    steps = [first_step_from(b, global_batch_size=size) for b in schedule.boundaries]
    if isinstance(schedule, Piecewise):
        values = [float(f"{s.rate:.6g}") for s in schedule.segments()]
        # Keras still uses the old rate at the boundary itself, so a boundary is the last step before the change.
        last_steps = [max(step - 1, 0) for step in steps]
        return [
            "learning_rate = keras.optimizers.schedules.PiecewiseConstantDecay(",
            f"    boundaries={last_steps}, values={values}",
            ")",
        ]
    if isinstance(schedule, Linear):
        end = schedule.learning_rate * schedule.end_factor
        return [
            "learning_rate = keras.optimizers.schedules.PolynomialDecay(",
            f"    {schedule.learning_rate:.6g}, decay_steps={steps[0]}, end_learning_rate={end:.6g}",
            ")",
        ]
    return [f"learning_rate = {schedule.learning_rate:.6g}"]
