from __future__ import annotations

import resource

import numpy as np
import pytest

from scalesearch.training.memory import bounded_memory, forget_peak_bytes, peak_bytes

CPU = "/device:CPU:0"


def test_what_does_not_fit_fails_and_leaves_no_bound() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    with bounded_memory(CPU):
        assert resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
        with pytest.raises(MemoryError):
            np.empty(2**50, np.uint8)
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_the_peak_is_that_since_it_was_forgotten() -> None:
    forget_peak_bytes(CPU)
    before = peak_bytes(CPU)
    block = np.ones(2**24)
    after = peak_bytes(CPU)
    assert before is not None
    assert after is not None
    assert after - before > 100 * 2**20
    del block
    forget_peak_bytes(CPU)
    assert (peak_bytes(CPU) or 0) < after - 100 * 2**20
