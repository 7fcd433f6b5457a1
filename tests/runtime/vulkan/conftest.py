"""One device of Vulkan for all tests: the CPU that stands in for a GPU (mesa-vulkan-drivers).

`pytest -m "gpu or not gpu" tests/runtime/vulkan` takes the GPU of this machine instead.
"""

import importlib.util

import pytest

from tests.test_house import ROOT
from woolly.errors import DeviceError
from woolly.runtime.vulkan.backend import VulkanBackend
from woolly.runtime.vulkan.device import VulkanDevice, open_device


@pytest.fixture(scope="session")
def opened():
    """The device, opened once: compiling its kernels takes most of the time."""
    try:
        device = open_device()
    except DeviceError as error:
        pytest.skip(f"{error}; apt-get install mesa-vulkan-drivers, and native/gpu/compile.py for the kernels")
    yield device
    device.close()


@pytest.fixture
def vulkan(opened):
    """A backend whose programs share the device."""
    return VulkanBackend(lambda *_: VulkanDevice(opened._shared, 120.0, is_first=False), lambda: opened.level)


@pytest.fixture(scope="session")
def compiling():
    """native/gpu/compile.py as a module."""
    spec = importlib.util.spec_from_file_location("compile_gpu", ROOT / "native" / "gpu" / "compile.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def own(opened):
    """A device of its own, which a test may lose."""
    device = open_device()
    yield device
    device.close()
