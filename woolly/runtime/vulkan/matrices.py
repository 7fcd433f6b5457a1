"""Matrix units: whether a GPU has those of native/gpu/linears/tiles.slang, and whether they compute exactly."""

from __future__ import annotations

import ctypes as c
from typing import TYPE_CHECKING

import numpy as np

from woolly.errors import DeviceError
from woolly.runtime.gpu.device import Address
from woolly.runtime.vulkan.archive import open_archive
from woolly.runtime.vulkan.libvulkan import VulkanLibrary
from woolly.runtime.vulkan.structs import MatrixProperties

if TYPE_CHECKING:
    from woolly.runtime.vulkan.driver import VulkanDevice

__all__ = ["EXTENSION", "FEATURES", "SIZES_TYPE", "TYPES", "has_units", "is_exact"]

EXTENSION = b"VK_KHR_cooperative_matrix"
FEATURES = ("cooperativeMatrix", "vulkanMemoryModel", "vulkanMemoryModelDeviceScope")
# Sides of a tile, what is multiplied, what is added, that nothing saturates, and who shares a tile: bytes with a sign,
# summed as whole numbers of 32 bits by a subgroup.
_TILE = (16, 16, 32, 3, 3, 5, 5, 0, 3)
_FLOATS = 1  # what results of 16 x 16 are as well: the kernel ends blocks in tiles of f32
_NONE = Address(0)
SIZES_TYPE = 1000225000  # of the struct that has the smallest and the largest subgroup
_SUBGROUP = 32  # threads that share a tile; the kernel counts on it
_SHARED = 34816  # bytes of shared memory of the kernel


def has_units(
    driver: VulkanLibrary, handle: c.c_void_p, features: frozenset[str], shared_bytes: int, sizes: tuple[int, ...]
) -> bool:
    """Whether the kernel of tiles runs there; `sizes`: the smallest and the largest subgroup."""
    if not features.issuperset(FEATURES) or shared_bytes < _SHARED or sizes != (_SUBGROUP, _SUBGROUP):
        return False
    name, n = "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR", c.c_uint32()
    driver.call(name, handle, c.byref(n), None)
    one = MatrixProperties((c.c_uint32 * len(_TILE))())
    found = (type(one) * max(1, n.value))(*(MatrixProperties((c.c_uint32 * len(_TILE))()) for _ in range(n.value)))
    driver.call(name, handle, c.byref(n), found)
    tiles = {tuple(each.numbers) for each in found[: n.value]}
    return _TILE in tiles and any(one[:2] == (16, 16) and one[6] == _FLOATS and one[8] == _TILE[8] for one in tiles)


# A product that all tiles of a group take part in, and a second group on either side with a few of its rows.
_N_OUT, _N_ROWS, _COLUMNS = 80, 130, 512
_PLAIN, _TILED = ("linear_many", (2, 3, 1), 256), ("linear_tiles", (2, 2, 1), 256)
# Types of the kernel, and which word of a block has its floats.
TYPES = {"q2_k": 20, "q3_k": 27, "q4_k": 0, "q5_k": 0, "q6_k": 52, "iq4_xs": 0}


def is_exact(device: VulkanDevice, by_tiles: tuple[str, tuple[int, ...], int] = _TILED) -> bool:
    """Whether a kernel, given by name, groups and threads, has the bits of the one without matrix units, of all types.

    A driver that cannot compile it has not.
    """
    try:
        return all(_is_exact(device, name, (_PLAIN, by_tiles)) for name in TYPES)
    except DeviceError as error:
        if error.code == "lost":
            raise
        return False


def _is_exact(device: VulkanDevice, type_name: str, kernels: tuple[tuple[str, tuple[int, ...], int], ...]) -> bool:
    """Whether two kernels have the same bits for random weights of a type."""
    random = np.random.default_rng(11)
    words = open_archive().weights[type_name].words
    weights = random.integers(0, 1 << 32, (_N_OUT, _COLUMNS // 256, words), np.uint32)
    weights[:, :, TYPES[type_name]] = 0x2B1C2E66  # two halves of usual size
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
        for i, (name, grid, threads) in enumerate(kernels):
            args = (
                *(places[0], places[1], _NONE, *places[2:5], _NONE, _NONE, Address(places[-1] + i * y[0].nbytes)),
                *(_N_OUT, _COLUMNS, words * _COLUMNS // 256, _COLUMNS, _N_OUT, 0, 1.0),
                *(_NONE, _NONE, _NONE, _NONE, _NONE, 1, 1),
            )
            device.launch(f"{name}_{type_name}", grid, threads, 0, args)
        device.download(places[-1], y.view(np.uint8).reshape(-1))
        device.wait()
    finally:
        for place in places:
            device.free(place)
    plain, tiled = y.view(np.uint32)
    return bool(np.array_equal(plain, tiled) and y.any())
