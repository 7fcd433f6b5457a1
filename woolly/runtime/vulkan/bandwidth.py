"""The bandwidth of a GPU's memory, measured by copies inside of it: Vulkan has no function that says it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from woolly.errors import DeviceError, RequestError

if TYPE_CHECKING:
    from woolly.runtime.gpu.queued import QueuedDevice
    from woolly.runtime.vulkan.driver import VulkanDevice

__all__ = ["COPIED", "find_bandwidth", "measure_bandwidth"]

COPIED = 128 << 20  # of a copy: more than the caches of most GPUs
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
    """Bytes read and written per second by the fastest of some copies; None if the clock is too coarse."""
    with ExitStack() as stack:
        places = []
        for _ in range(2):
            places.append(device.allocate(n_bytes))
            stack.callback(device.free, places[-1])
        source, to = places
        spent = []
        for _ in range(_TIMES):
            first = device.mark()
            device.copy(source, to, n_bytes)
            last = device.mark()
            device.wait()
            spent += device.times([first, last])
    fastest = min((one for one in spent if one > 0), default=0)
    return 2e9 * n_bytes / fastest if fastest else None
