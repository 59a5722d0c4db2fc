"""The order of the training data: a pure function of (seed, epoch, position), so that a step number says it all.

The stream is the epochs' permutations one after another. Position p is example p mod n of epoch p div n.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

Int64Array = np.ndarray[Any, np.dtype[np.int64]]
Float32Array = np.ndarray[Any, np.dtype[np.float32]]

_ORDER, _UNIFORMS = 0, 1  # what a Philox stream is for; part of its key


def epoch_permutation(seed: int, epoch: int, examples: int) -> Int64Array:
    """The order of the `examples` training examples in `epoch` (counted from 0), shape (examples,)."""
    return _epoch_permutation(seed, epoch, examples)


# A training run asks for parts of one epoch, or of two neighbours, many times in a row.
@lru_cache(maxsize=2)
def _epoch_permutation(seed: int, epoch: int, examples: int) -> Int64Array:
    permutation = np.random.Generator(_philox(seed, _ORDER, epoch)).permutation(examples)
    permutation.flags.writeable = False
    return permutation


def stream_indices(seed: int, start: int, count: int, examples: int) -> Int64Array:
    """Indices of the examples at positions start … start + count − 1 of the stream, shape (count,)."""
    parts = []
    position, end = start, start + count
    while position < end:
        epoch, offset = divmod(position, examples)
        part = epoch_permutation(seed, epoch, examples)[offset : offset + end - position]
        parts.append(part)
        position += len(part)
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def stream_uniforms(seed: int, start: int, count: int, numbers: int) -> Float32Array:
    """Uniform random numbers in [0, 1) for positions start … start + count − 1, shape (count, numbers)."""
    counters = -(-numbers // 4)  # Philox yields four 64-bit words per tick of its counter
    bits = _philox(seed, _UNIFORMS, 0)
    bits.advance(start * counters)
    words = bits.random_raw(count * counters * 4).reshape(count, counters * 4)[:, :numbers]
    return (words >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def _philox(seed: int, purpose: int, epoch: int) -> np.random.Philox:
    return np.random.Philox(key=np.array([seed, purpose << 56 | epoch], np.uint64))
