"""Arguments of the matrix-product kernels: input rows, tiled matrices and epilogue."""

from __future__ import annotations

from dataclasses import dataclass

from woolly.runtime.cuda.weight_tiles import Tiles
from woolly.runtime.gpu.device import Address
from woolly.runtime.gpu.emitter import Emitter

NULL = Address(0)

# (tiles, bias, output address, rows, panels) of each matrix.
Matrices = tuple[tuple[Address, Address, Address, int, int], ...]


@dataclass(frozen=True)
class EpilogueParams:
    """Epilogue of a product: arguments FINISH of the kernels."""

    residual: Address = NULL
    epilogue: int = 0
    gate: int = 0
    limit: float = 0.0
    scale: float = 1.0

    @property
    def args(self) -> tuple[Address | int | float, ...]:
        """Launch arguments, in order."""
        return (self.residual, self.epilogue, self.gate, self.limit, self.scale)


@dataclass(frozen=True)
class Input:
    """Input rows of a product, with an optional norm."""

    x: Address
    kind: int
    n_columns: int  # of each head
    norm: Address = NULL
    eps: float = 0.0
    heads: int = 1

    @property
    def n_tiles(self) -> int:
        """Tiles per panel."""
        return -(-self.n_columns // 256)


def tile_bytes(tiles: Tiles) -> int:
    """Return the bytes of one tile."""
    return (tiles.factors - tiles.address) // (tiles.n_panels * tiles.n_tiles)


def flat(matrices: Matrices) -> tuple[Address | int, ...]:
    """Return arguments MATRIX(0), MATRIX(1) and MATRIX(2) of the kernels."""
    return tuple(arg for m in (*matrices, *[(NULL, NULL, NULL, 0, 0)] * (3 - len(matrices))) for arg in m)


def prepared(e: Emitter, rows: Input) -> tuple[Address, Address, int]:
    """Return the buffers of prepared f16 rows and of their inverse scales, and their capacity in rows."""
    stride = -(-e.max_rows // 128) * 128
    # Kernels with row tiles of 160 read past the last row and discard those products.
    n_bytes = stride * rows.n_tiles * 512 + 160 * 128
    return e.scratch("linears rows", n_bytes), e.scratch("linears backs", 4 * stride), stride
