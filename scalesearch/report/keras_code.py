"""A recommendation as code to paste into a Keras script under MirroredStrategy."""

from __future__ import annotations

from scalesearch.core.parameters import Parameters
from scalesearch.core.schedule import Linear, Piecewise, first_step_from

_OPTIMIZERS = {
    "sgd": "keras.optimizers.SGD(learning_rate)",
    "momentum": "keras.optimizers.SGD(learning_rate, momentum={momentum})",
    "nesterov": "keras.optimizers.SGD(learning_rate, momentum={momentum}, nesterov=True)",
    "adam": "keras.optimizers.Adam(learning_rate, beta_1={momentum})",
    "adamw": "keras.optimizers.AdamW(learning_rate, beta_1={momentum})",
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
        f"    optimizer = {_OPTIMIZERS[optimizer].format(momentum=_number(parameters.momentum or 0.0))}",
    ]
    if parameters.accumulation > 1:
        lines.insert(2, f"# measured with {parameters.accumulation} micro-batches per replica and step")
    return "\n".join(lines)


def _schedule(parameters: Parameters) -> list[str]:
    schedule, size = parameters.schedule, parameters.global_batch_size
    if isinstance(schedule, Piecewise) and schedule.boundaries:
        values = ", ".join(_number(s.rate) for s in schedule.segments())
        # Keras still uses the old rate at the boundary itself, so a boundary is the last step before the change.
        last_steps = [first_step_from(b, global_batch_size=size) - 1 for b in schedule.boundaries]
        return [
            "learning_rate = keras.optimizers.schedules.PiecewiseConstantDecay(",
            f"    boundaries={last_steps}, values=[{values}]",
            ")",
        ]
    if isinstance(schedule, Linear):
        # A fraction of a step where the decay does not end on one: rounded, every rate on the way would be off.
        steps, rest = divmod(schedule.decay_examples, size)
        decay_steps = steps if rest == 0 else schedule.decay_examples / size
        end = schedule.learning_rate * schedule.end_factor
        return [
            "learning_rate = keras.optimizers.schedules.PolynomialDecay(",
            f"    {_number(schedule.learning_rate)}, decay_steps={decay_steps}, end_learning_rate={_number(end)}",
            ")",
        ]
    return [f"learning_rate = {_number(schedule.learning_rate)}"]


def _number(value: float) -> str:
    """A Python float, since Keras takes the type of an int for that of the rate; as exact as the float32 it becomes."""
    return repr(float(f"{value:.7g}"))
