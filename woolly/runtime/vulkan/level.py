"""The level of a GPU, and whether `auto` may take it: asked at every start, so that it imports little."""

from __future__ import annotations

from woolly.errors import DeviceError
from woolly.runtime.vulkan.archive import open_archive
from woolly.runtime.vulkan.libvulkan import open_driver

# One arithmetic: that of the cpu backend, whatever the GPU.
LEVEL = "vulkan"


def find_level(index: int = 0) -> str:
    """The level of a GPU, without opening it. DeviceError if there is none that `auto` may take.

    The CPU that stands in for a GPU is taken by name alone, because the cpu backend is faster; so is a GPU that shares
    the CPU's memory, as long as nobody has measured that it is not slower.
    """
    driver = open_driver()  # most machines are refused here
    from woolly.runtime.vulkan.physical import find_physical

    physical = find_physical(driver, index)
    if physical.is_software:
        raise DeviceError(f"Vulkan has no GPU here, only {physical.name}, which is the CPU", code="no_driver")
    if physical.kind == "integrated":
        text = f"{physical.name} shares the memory of the CPU, and is taken by name alone: device='vulkan'"
        raise DeviceError(text, code="no_driver")
    open_archive()
    return LEVEL
