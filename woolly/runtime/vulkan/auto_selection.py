"""Level of a GPU, and whether `auto` may use it. Runs at every start, so it imports little."""

from __future__ import annotations

from woolly.errors import DeviceError
from woolly.runtime.vulkan.kernel_archive import open_archive
from woolly.runtime.vulkan.libvulkan import open_driver

# One level for all GPUs: results match the CPU backend.
LEVEL = "vulkan"


def find_level(index: int = 0) -> str:
    """Return the level of a GPU without opening it. Raises DeviceError if `auto` may not use the GPU.

    A CPU driver (llvmpipe) must be selected explicitly, because the CPU backend is faster. An integrated GPU must be
    selected explicitly until measurements show that it is not slower.
    """
    driver = open_driver()  # fails first on most machines
    from woolly.runtime.vulkan.physical_device import find_physical

    physical = find_physical(driver, index)
    if physical.is_software:
        raise DeviceError(f"Vulkan found no GPU, only the CPU driver {physical.name}", code="no_driver")
    if physical.kind == "integrated":
        text = f"{physical.name} shares the memory of the CPU, and is taken by name alone: device='vulkan'"
        raise DeviceError(text, code="no_driver")
    open_archive()
    return LEVEL
