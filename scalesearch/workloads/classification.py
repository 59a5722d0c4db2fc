"""Loss and metrics of classifiers whose models output logits. Labels are class numbers, shape (n,)."""

from __future__ import annotations

from collections.abc import Mapping

from scalesearch.workloads.workload import PerExample, Tensor


def cross_entropy(labels: Tensor, logits: Tensor) -> Tensor:
    """Cross-entropy in nats per example, shape (n,)."""
    import tensorflow as tf

    # In mixed precision the logits are float16, too coarse for a loss.
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=tf.cast(logits, tf.float32))


def classification_error(labels: Tensor, logits: Tensor) -> Tensor:
    """1 for each example whose largest logit is not its label's, else 0; shape (n,)."""
    import tensorflow as tf

    predicted = tf.argmax(logits, axis=-1, output_type=labels.dtype)
    return tf.cast(predicted != labels, tf.float32)


METRICS: Mapping[str, PerExample] = {
    "classification_error": classification_error,
    "cross_entropy_error": cross_entropy,
}
