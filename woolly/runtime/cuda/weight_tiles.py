"""Tiles: weight matrices in the layout of native/cuda/weights/tile.cuh, repacked on the device."""

from __future__ import annotations

import math
from dataclasses import dataclass

from woolly import _native
from woolly.errors import UnsupportedError
from woolly.plan import Weight
from woolly.quant import GGMLType
from woolly.runtime.gpu.codebooks import points_of
from woolly.runtime.gpu.device import Address, Device
from woolly.runtime.gpu.emitter import Emitter, TensorPart

TILE_ROWS, TILE_COLUMNS = 16, 256
_WARPS = 8  # per packing block
_MAX_MATRICES = 65535  # per launch

# Bytes of a tile of each kind: Tile<T>::bytes of native/cuda.
_BYTES = {
    "f16": 8192,
    "q8_0": 4352,
    "wide": 4608,
    "q4_0": 2304,
    "q4_1": 2560,
    "q5_0": 2816,
    "q5_1": 3072,
    "iq4_nl": 2304,
    "mxfp4": 2304,
    "nvfp4": 2560,
    "q2_k": 1408,
    "q3_k": 1824,
    "q4_k": 2304,
    "q5_k": 2816,
    "q6_k": 3456,
}


# Types packed losslessly as tiles of another type.
_ALIKE = {GGMLType.BF16: "f16", GGMLType.IQ4_XS: "iq4_nl"}
# Tile kind of each supported type: all types of the CPU except F32, which needs no tiles. Types without a specific kind
# use "wide", with one byte per weight.
KINDS: dict[GGMLType, str] = {
    type: name if (name := type.name.lower()) in _BYTES else _ALIKE.get(type, "wide")
    for type in map(GGMLType.__getitem__, _native.types())
    if type is not GGMLType.F32
}


@dataclass(frozen=True)
class Tiles:
    """Packed matrix, or one matrix per expert, as read by the product kernels."""

    kind: str  # tile kind, the suffix of kernel names
    n_rows: int  # per matrix; of both weights together if paired
    n_columns: int
    is_paired: bool  # rows g and g + 8 of a panel are the same row of two weights
    address: Address  # of the first matrix: tiles panel by panel, then an f32 factor per packed row
    n_matrices: int = 1

    @property
    def n_panels(self) -> int:
        """Panels of 16 packed rows. The last is zero-padded."""
        return _n_panels(self.n_rows, self.is_paired)

    @property
    def n_tiles(self) -> int:
        """Tiles of 256 columns per panel. The last is zero-padded."""
        return -(-self.n_columns // TILE_COLUMNS)

    @property
    def stride(self) -> int:
        """Bytes from one matrix to the next."""
        return _matrix_bytes(self.kind, self.n_panels, self.n_tiles)

    @property
    def factors(self) -> Address:
        """Address of the row factors of the first matrix."""
        return self.address + self.n_panels * self.n_tiles * _BYTES[self.kind]

    @property
    def n_bytes(self) -> int:
        """Bytes of all matrices."""
        return self.n_matrices * self.stride


def can_pack(type: GGMLType) -> bool:
    """True if matrices of the type are packed as tiles. F32 matrices are not."""
    return type in KINDS


def kind_of(type: GGMLType) -> str:
    """Return the tile kind of a type. Raises UnsupportedError if there is none."""
    if not can_pack(type):
        raise UnsupportedError(f"the cuda backend does not compute with {type.name} matrices")
    return KINDS[type]


def tile_bytes(type: GGMLType) -> int:
    """Return the bytes of a tile (16 rows x 256 columns) of a type."""
    return _BYTES[kind_of(type)]


def packed_bytes(weight: Weight) -> int:
    """Return the packed size of a matrix or of all experts. Paired weights have the same size, except for padding."""
    *experts, rows, columns = weight.shape
    n_tiles = -(-columns // TILE_COLUMNS)
    return math.prod(experts) * _matrix_bytes(kind_of(weight.type), _n_panels(rows, False), n_tiles)


def tiles_of(emitter: Emitter, weight: Weight, other: Weight | None = None) -> Tiles:
    """Return the tiles of a weight, or with `other` of both weights in pairs of rows, filled by the loader.

    Row r of the first weight is packed row r // 8 * 16 + r % 8, row r of `other` 8 later: one lane has gate and up of a
    feature in its registers.
    """
    kind = kind_of(weight.type)
    *experts, rows, columns = weight.shape
    if other is not None and (other.type, other.shape) != (weight.type, weight.shape):
        raise UnsupportedError(
            f"{weight.name} and {other.name} differ in shape or type, so their rows cannot be paired"
        )
    n_rows = rows if other is None else 2 * rows
    # Allocated last: the codebook must exist before packing.
    points = points_of(emitter, weight.type)
    shape = Tiles(kind, n_rows, columns, other is not None, Address(0), math.prod(experts))
    parts = [
        TensorPart(
            one.name,
            _Packer(weight.type, shape, rows, order, points),
            TILE_ROWS if shape.n_matrices == 1 or rows % TILE_ROWS == 0 else rows,
        )
        for order, one in ([(0, weight)] if other is None else [(1, weight), (2, other)])
    ]
    key = " ".join(["tiles", *(part.name for part in parts)])
    address = emitter.weight(key, shape.n_bytes, *parts)
    return Tiles(kind, n_rows, columns, shape.is_paired, address, shape.n_matrices)


@dataclass(frozen=True)
class _Packer:
    """Queue the packing of source rows: several complete matrices, or some panels of one."""

    type: GGMLType
    shape: Tiles  # without an address
    rows: int  # per matrix in the source
    order: int  # 0: all packed rows, 1: the first eight of each panel, 2: the last eight
    points: Address

    def __call__(self, device: Device, weight: Address, staged: Address, first: int, n_rows: int) -> None:
        row_bytes = self.type.row_bytes(self.shape.n_columns)
        end = first + n_rows
        while first < end:
            matrix, row = divmod(first, self.rows)
            n_whole = min((end - first) // self.rows, _MAX_MATRICES) if row == 0 else 0
            n = self.rows if n_whole else min(self.rows - row, end - first)
            self._launch(device, weight + matrix * self.shape.stride, staged, row, n, n_whole or 1)
            first += (n_whole or 1) * n
            staged += (n_whole or 1) * n * row_bytes

    def _launch(
        self, device: Device, matrix: Address, staged: Address, first: int, n_rows: int, n_matrices: int
    ) -> None:
        shape = self.shape
        rows_per_panel = TILE_ROWS // 2 if self.order else TILE_ROWS
        panel, n_panels = first // rows_per_panel, -(-n_rows // rows_per_panel)
        tiles = matrix + panel * shape.n_tiles * _BYTES[shape.kind]
        factors = matrix + shape.n_panels * shape.n_tiles * _BYTES[shape.kind] + panel * TILE_ROWS * 4
        name, n_blocks = self.type.name.lower(), shape.n_columns // self.type.block_size
        source = (staged, self.rows, n_rows, n_blocks, self.order, n_panels)
        threads, step = 32 * _WARPS, shape.stride // 16
        rows, tiled = -(-n_panels * TILE_ROWS // _WARPS), -(-n_panels * shape.n_tiles // _WARPS)
        device.launch(f"measure_{name}", (rows, n_matrices), threads, 0, (*source, factors, step))
        last = (shape.n_tiles, factors, tiles, step, self.points)
        device.launch(f"pack_{name}", (tiled, n_matrices), threads, 0, (*source, *last))


def _n_panels(n_rows: int, is_paired: bool) -> int:
    return -(-n_rows // 2 // (TILE_ROWS // 2)) if is_paired else -(-n_rows // TILE_ROWS)


def _matrix_bytes(kind: str, n_panels: int, n_tiles: int) -> int:
    n_bytes = n_panels * (n_tiles * _BYTES[kind] + TILE_ROWS * 4)
    return -(-n_bytes // 128) * 128
