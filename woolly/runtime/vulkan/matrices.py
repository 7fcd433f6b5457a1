"""Matrix units: whether a GPU has those of native/gpu/linears/tiles.slang, and whether they compute exactly."""

from __future__ import annotations

import ctypes as c
import struct
from typing import TYPE_CHECKING

import numpy as np

from woolly.runtime.gpu.device import Address
from woolly.runtime.vulkan.libvulkan import VulkanLibrary
from woolly.runtime.vulkan.structs import FeaturesInfo, MatrixProperties

if TYPE_CHECKING:
    from woolly.runtime.vulkan.driver import VulkanDevice

__all__ = ["EXTENSION", "FEATURES", "has_units", "is_exact"]

EXTENSION = b"VK_KHR_cooperative_matrix"
FEATURES = ("cooperativeMatrix", "vulkanMemoryModel", "vulkanMemoryModelDeviceScope")
# Sides of a tile, what is multiplied, what is added, that nothing saturates, and who shares a tile: bytes with a sign,
# summed as whole numbers of 32 bits by a subgroup.
_TILE = (16, 16, 32, 3, 3, 5, 5, 0, 3)
_NONE = Address(0)
_SUBGROUP = 32  # threads that share a tile; the kernel counts on it
_SHARED = 34816  # bytes of shared memory of the kernel
_PROPERTIES_2_TYPE, _SIZES_TYPE = 1000059001, 1000225000  # the second has the smallest and the largest subgroup


def has_units(driver: VulkanLibrary, handle: c.c_void_p, features: frozenset[str], shared_bytes: int) -> bool:
    """Whether the kernel of tiles runs there. The driver must have EXTENSION."""
    if not features.issuperset(FEATURES) or shared_bytes < _SHARED:
        return False
    sizes = FeaturesInfo(_SIZES_TYPE, (c.c_uint32 * 4)(), None)
    properties = c.create_string_buffer(2048)  # of VkPhysicalDeviceProperties2, larger than any
    struct.pack_into("=IIQ", properties, 0, _PROPERTIES_2_TYPE, 0, c.addressof(sizes))
    driver.result("vkGetPhysicalDeviceProperties2", handle, properties)
    if tuple(sizes.bits[:2]) != (_SUBGROUP, _SUBGROUP):
        return False
    name, n = "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR", c.c_uint32()
    driver.call(name, handle, c.byref(n), None)
    one = MatrixProperties((c.c_uint32 * len(_TILE))())
    found = (type(one) * max(1, n.value))(*(MatrixProperties((c.c_uint32 * len(_TILE))()) for _ in range(n.value)))
    driver.call(name, handle, c.byref(n), found)
    return any(tuple(each.numbers) == _TILE for each in found[: n.value])


# A product that all tiles of a group take part in, and a second group on either side with a few of its rows.
_N_OUT, _N_ROWS, _COLUMNS = 80, 130, 512
_STRIDE = _COLUMNS // 256 * 36  # words of a row of Q4_K
_PLAIN = "linear_many_q4_k", (2, 3, 1), 256
_BY_TILES = "linear_tiles_q4_k", (2, 2, 1), 256


def is_exact(device: VulkanDevice, by_tiles: tuple[str, tuple[int, ...], int] = _BY_TILES) -> bool:
    """Whether the kernel of tiles gives the bits of the one without matrix units: name, groups and threads of it."""
    random = np.random.default_rng(11)
    weights = random.integers(0, 1 << 32, (_N_OUT, _COLUMNS // 256, 36), np.uint32)
    weights[:, :, 0] = 0x2B1C2E66  # halves of usual size: scale and minimum
    q = random.integers(-127, 128, (_N_ROWS, _COLUMNS), np.int8)
    scales = random.uniform(0.001, 0.1, (_N_ROWS, _COLUMNS // 256)).astype(np.float32)
    sums = q.reshape(_N_ROWS, _COLUMNS // 16, 16).sum(-1, dtype=np.int32)
    batch = np.zeros(64, np.int32)  # of native/gpu/primitives/batch.slang: how many rows it has, and nothing else
    batch[[0, 2]] = _N_ROWS
    y = np.zeros((2, _N_ROWS, _N_OUT), np.float32)
    inputs = (batch, weights, q, scales, sums)
    places = [device.allocate(one.nbytes) for one in (*inputs, y)]
    try:
        for place, one in zip(places, inputs, strict=False):
            device.upload(place, np.ascontiguousarray(one).view(np.uint8).reshape(-1))
        for i, (name, grid, threads) in enumerate((_PLAIN, by_tiles)):
            to = places[-1] + i * y[0].nbytes
            args = (
                *(places[0], places[1], _NONE, *places[2:5], _NONE, _NONE, Address(to)),
                *(_N_OUT, _COLUMNS, _STRIDE, _COLUMNS, _N_OUT, 0, 1.0),
                *(_NONE, _NONE, _NONE, _NONE, _NONE, 1, 1),
            )
            device.launch(name, grid, threads, 0, args)
        device.download(places[-1], y.view(np.uint8).reshape(-1))
        device.wait()
    finally:
        for place in places:
            device.free(place)
    plain, tiled = y.view(np.uint32)
    return bool(np.array_equal(plain, tiled) and y.any())
