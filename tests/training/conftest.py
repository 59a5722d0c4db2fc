"""Four logical CPU devices for every test of this session.

TensorFlow can be told so only before it touches a device, so it happens at collection, before any test runs.
"""

from __future__ import annotations

from scalesearch.training.devices import configure_devices

configure_devices(4)
