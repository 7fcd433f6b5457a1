"""Blocks: packed weight layout of the kernels in native/gpu, and repacking by the loader."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from woolly import _native
from woolly.errors import UnsupportedError
from woolly.plan import Weight
from woolly.runtime.gpu.codebooks import points_of
from woolly.runtime.gpu.device import Address, Device
from woolly.runtime.gpu.emitter import Emitter, TensorPart
from woolly.runtime.vulkan.kernel_archive import open_archive

_THREADS, _MAX_GROUPS = 64, 32768  # constants of native/gpu/weights/pack.slang


@dataclass(frozen=True)
class Blocks:
    """Packed matrix on the device, or one per head or expert."""

    address: Address
    points: Address  # codebook; 0: none
    stride: int  # 32-bit words per row; 0 for floats
    columns: int  # columns per block of quantized activations: 32 or 256; 0: floats
    name: str  # type name in kernel names


def columns_of(weight: Weight) -> int:
    """Return the columns per activation block of a weight type: 32, 256, or 0 for floats and types without kernels."""
    activations = _native.types()[weight.type.name][3] if weight.type.name in _native.types() else "f32"
    return 0 if activations == "f32" else int(activations.removeprefix("q8_"))


def blocks_of(e: Emitter, weight: Weight) -> Blocks:
    """Return the packed weight on the device, filled by the loader."""
    kind, columns = weight.type, weight.shape[-1]
    n_rows = math.prod(weight.shape[:-1])
    name = kind.name.lower()
    activations = _native.types()[kind.name][3] if kind.name in _native.types() else ""
    if activations == "f32":
        return Blocks(e.raw(weight), Address(0), 0, 0, name)
    form = open_archive().weights.get(name)
    if form is None:
        raise UnsupportedError(f"Vulkan and Metal do not support {kind.name} weights")
    points = points_of(e, kind)
    n_blocks = columns // kind.block_size
    pack = partial(_pack, n_blocks, kind.type_size, form.words, form.head)
    address = e.weight(
        f"blocks {weight.name}", 4 * n_rows * n_blocks * form.words, TensorPart(weight.name, pack, rows=1)
    )
    return Blocks(address, points, n_blocks * form.words, int(activations.removeprefix("q8_")), name)


def _pack(
    n_blocks: int, n_bytes: int, words: int, head: int, device: Device, to: Address, staged: Address, first: int, n: int
) -> None:
    """Queue the repacking of n staged rows."""
    at = Address(to + 4 * first * n_blocks * words)
    groups = -(-n * n_blocks * words // _THREADS)
    grid = (min(groups, _MAX_GROUPS), -(-groups // _MAX_GROUPS))
    device.launch("pack", grid, _THREADS, 0, (staged, at, n * n_blocks, n_bytes, words, head))
