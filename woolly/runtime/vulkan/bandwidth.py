"""The bandwidth of a GPU's memory, measured by copies and fills inside of it: Vulkan has no function that says it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from woolly.errors import DeviceError, RequestError

if TYPE_CHECKING:
    from woolly.runtime.gpu.queued import QueuedDevice
    from woolly.runtime.vulkan.driver import VulkanDevice

COPIED = 128 << 20  # bytes: more than the caches of most GPUs
_ROOM = 8  # times as much must be free
_TIMES = 3


def find_bandwidth(device: VulkanDevice) -> float | None:
    """Bytes per second; None of the CPU in place of a GPU, without a clock, or without memory for a copy.

    A figure keeps no model away: a card may be full although its driver says that memory is free.
    """
    physical = device.physical
    if physical.is_software or not physical.timestamp_bits or device.memory()[0] < _ROOM * COPIED:
        return None
    try:
        return measure_bandwidth(device, COPIED)
    except (DeviceError, RequestError):
        return None


def measure_bandwidth(device: QueuedDevice, n_bytes: int) -> float | None:
    """Bytes per second of the fastest of some copies and fills; None if the clock is too coarse.

    A driver may copy by an engine of its own: on an H200 at 840 GB/s, where zeros are written at 4,000.
    """
    with ExitStack() as stack:
        places = []
        for _ in range(2):
            places.append(device.allocate(n_bytes))
            stack.callback(device.free, places[-1])
        source, to = places
        rates = [0.0]
        works: tuple[tuple[int, Callable[[], None]], ...] = (
            (2 * n_bytes, lambda: device.copy(source, to, n_bytes)),
            (n_bytes, lambda: device.zero(to, n_bytes)),
        )
        for moved, queue in works * _TIMES:
            first = device.mark()
            queue()
            last = device.mark()
            device.wait()
            rates += [1e9 * moved / spent for spent in device.times([first, last]) if spent > 0]
    return max(rates) or None
