"""Memory bandwidth of a GPU, measured by copies and fills, because Vulkan does not report it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from woolly.errors import DeviceError, RequestError

if TYPE_CHECKING:
    from woolly.runtime.gpu.command_buffer_device import CommandBufferDevice
    from woolly.runtime.vulkan.device import VulkanDevice

COPIED = 128 << 20  # bytes per copy: more than the caches of most GPUs
_ROOM = 8  # required free memory, in copies
_TIMES = 3


def find_bandwidth(device: VulkanDevice) -> float | None:
    """Return the bandwidth in bytes per second, or None for CPU drivers, or if timestamps or memory are missing.

    A failed measurement must not prevent loading a model: a GPU may be full although the driver reports free memory.
    """
    physical = device.physical
    if physical.is_software or not physical.timestamp_bits or device.memory()[0] < _ROOM * COPIED:
        return None
    try:
        return measure_bandwidth(device, COPIED)
    except (DeviceError, RequestError):
        return None


def measure_bandwidth(device: CommandBufferDevice, n_bytes: int) -> float | None:
    """Return the bytes per second of the fastest copy or fill, or None if timestamps are too coarse.

    Fills count because a driver may use a slow copy engine: on an H200 copies run at 840 GB/s, fills at 4,000 GB/s.
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
