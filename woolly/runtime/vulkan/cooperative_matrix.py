"""Matrix units: support for the cooperative matrices of native/gpu/linears/units.slang, and a test of exactness."""

from __future__ import annotations

import ctypes as c
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from woolly.errors import DeviceError
from woolly.runtime.gpu.device import Address
from woolly.runtime.vulkan.kernel_archive import open_archive
from woolly.runtime.vulkan.libvulkan import VulkanLibrary
from woolly.runtime.vulkan.structs import MatrixProperties

if TYPE_CHECKING:
    from woolly.runtime.vulkan.device import VulkanDevice

EXTENSION = b"VK_KHR_cooperative_matrix"
FEATURES = ("cooperativeMatrix", "shaderFloat16", "vulkanMemoryModel", "vulkanMemoryModelDeviceScope")
# M, N, K, types of A, B, C and result, saturation, scope: f16 with f32 sums and int8 with int32 sums, per subgroup.
_TILES = {(16, 16, 16, 0, 0, 1, 1, 0, 3), (16, 16, 32, 3, 3, 5, 5, 0, 3)}
_NONE = Address(0)
SIZES_TYPE = 1000225000  # sType of the properties with minimum and maximum subgroup sizes
_SUBGROUP = 32  # subgroup size that the kernels require
_SHARED = 47104  # bytes of shared memory of the largest kernel


def has_units(
    driver: VulkanLibrary, handle: c.c_void_p, features: frozenset[str], shared_bytes: int, sizes: tuple[int, ...]
) -> bool:
    """True if the GPU can run the matrix unit kernels. `sizes`: minimum and maximum subgroup size."""
    if not features.issuperset(FEATURES) or shared_bytes < _SHARED or sizes != (_SUBGROUP, _SUBGROUP):
        return False
    name, n = "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR", c.c_uint32()
    driver.call(name, handle, c.byref(n), None)
    one = MatrixProperties((c.c_uint32 * 9)())
    found = (type(one) * max(1, n.value))(*(MatrixProperties((c.c_uint32 * 9)()) for _ in range(n.value)))
    driver.call(name, handle, c.byref(n), found)
    return {tuple(each.numbers) for each in found[: n.value]} >= _TILES


_Kernel = tuple[str, tuple[int, ...], int]  # name without the type, grid, threads per group

# Test product: uses all tiles of a group, plus a partial second group along both dimensions.
_N_OUT, _N_ROWS, _COLUMNS = 144, 134, 1280
_PLAIN: _Kernel = ("linear_many", (3, 3, 1), 256)
_TILED: tuple[_Kernel, ...] = (
    ("linear_tiles", (3, 2, 1), 128),
    ("linear_squares", (3, 3, 1), 128),
    ("linear_strips", (3, 5, 1), 128),
    ("linear_slips", (3, 9, 1), 128),
)
# Weight types with kernels, and the word of a block that holds its f16 scales.
TYPES = {"q2_k": 20, "q3_k": 27, "q4_k": 0, "q5_k": 0, "q6_k": 52, "iq4_xs": 0}
# Kernels that only a GPU with matrix units may load.
KERNELS = frozenset(f"{kernel}_{type_name}" for kernel, *_ in _TILED for type_name in TYPES)
_COMPILERS = 8  # kernels compiled concurrently; each takes about 0.25 s


def is_exact(device: VulkanDevice, tiled: tuple[_Kernel, ...] = _TILED) -> bool:
    """True if matrix unit kernels of all types are bit-identical to the kernel without matrix units.

    False if the driver cannot compile them.
    """
    names = [f"{name}_{type_name}" for name, *_ in (_PLAIN, *tiled) for type_name in TYPES]
    try:
        with ThreadPoolExecutor(_COMPILERS) as pool:
            list(pool.map(lambda name: device.prepare(name, 0), names))
        return all(_is_exact(device, type_name, (_PLAIN, *tiled)) for type_name in TYPES)
    except DeviceError as error:
        if error.code == "lost":
            raise
        return False


def _is_exact(device: VulkanDevice, type_name: str, kernels: tuple[_Kernel, ...]) -> bool:
    """True if kernels are bit-identical for a weight type, with random weights and with the largest sums."""
    random = np.random.default_rng(11)
    words = open_archive().weights[type_name].words
    weights = random.integers(0, 1 << 32, (_N_OUT, _COLUMNS // 256, words), np.uint32)
    # Extreme quants and scales; scales are at the start or at the end of a block, depending on the type.
    weights[:4] = np.array([0xFFFFFFFF, 0, 0, 0], np.uint32)[:, None, None]
    weights[1, :, :4], weights[2, :, -8:], weights[3, :, -8:] = 0xFFFFFFFF, 0x80808080, 0x7F7F7F7F
    weights[:, :, TYPES[type_name]] = 0x2B1C2E66  # two f16 scales of typical magnitude
    q = random.integers(-127, 128, (_N_ROWS, _COLUMNS), np.int8)
    q[0], q[1] = 127, -127
    q[:2, ::256] += np.array([[-1], [1]], np.int8)  # odd sums above 2^24, which f32 cannot represent
    scales = random.uniform(0.001, 0.1, (_N_ROWS, _COLUMNS // 256)).astype(np.float32)
    sums = q.reshape(_N_ROWS, _COLUMNS // 16, 16).sum(-1, dtype=np.int32)
    batch = np.zeros(64, np.int32)  # struct Batch of native/gpu/primitives/batch.slang with row counts only
    batch[[0, 2]] = _N_ROWS
    y = np.zeros((len(kernels), _N_ROWS, _N_OUT), np.float32)
    inputs = (batch, weights, q, scales, sums)
    places = [device.allocate(one.nbytes) for one in (*inputs, y)]
    try:
        for place, one in zip(places, inputs, strict=False):
            device.upload(place, np.ascontiguousarray(one).view(np.uint8).reshape(-1))
        device.zero(places[-1], y.nbytes)  # clears results of an earlier test
        for i, (name, grid, threads) in enumerate(kernels):
            args = (
                *(places[0], places[1], _NONE, *places[2:5], _NONE, _NONE, Address(places[-1] + i * y[0].nbytes)),
                *(_N_OUT, _COLUMNS, words * _COLUMNS // 256, _COLUMNS, _N_OUT, 0, 1.0),
                _NONE,
            )
            device.launch(f"{name}_{type_name}", grid, threads, 0, args)
        device.download(places[-1], y.view(np.uint8).reshape(-1))
        device.wait()
    finally:
        for place in places:
            device.free(place)
    found = y.view(np.uint32)
    return bool((found == found[0]).all() and y[0].any())
