"""What kernels of products take: rows, matrices of tiles, and what follows the sums."""

from __future__ import annotations

from dataclasses import dataclass

from woolly.runtime.cuda.tiles import Tiles
from woolly.runtime.gpu.device import Address
from woolly.runtime.gpu.emit import Emitter

NULL = Address(0)

# Tiles, bias, place of the result, rows and strips of each matrix.
Matrices = tuple[tuple[Address, Address, Address, int, int], ...]


@dataclass(frozen=True)
class EpilogueParams:
    """What follows the sums: arguments FINISH of the kernels."""

    residual: Address = NULL
    epilogue: int = 0
    gate: int = 0
    limit: float = 0.0
    scale: float = 1.0

    @property
    def args(self) -> tuple[Address | int | float, ...]:
        """Arguments of a launch."""
        return (self.residual, self.epilogue, self.gate, self.limit, self.scale)


@dataclass(frozen=True)
class Input:
    """The rows that matrices are multiplied with."""

    x: Address
    kind: int
    n_columns: int  # of a matrix
    norm: Address = NULL
    eps: float = 0.0
    heads: int = 1

    @property
    def n_tiles(self) -> int:
        """Tiles of a strip."""
        return -(-self.n_columns // 256)


def tile_bytes(tiles: Tiles) -> int:
    """Bytes of one tile."""
    return (tiles.factors - tiles.address) // (tiles.n_panels * tiles.n_tiles)


def flat(matrices: Matrices) -> tuple[Address | int, ...]:
    """Arguments MATRIX(0), MATRIX(1) and MATRIX(2) of the kernels."""
    return tuple(arg for m in (*matrices, *[(NULL, NULL, NULL, 0, 0)] * (3 - len(matrices))) for arg in m)


def prepared(e: Emitter, rows: Input) -> tuple[Address, Address, int]:
    """Memory of prepared rows and of what their numbers were multiplied by, and how many rows it has."""
    stride = -(-e.max_rows // 128) * 128
    # Kernels that take 160 rows at once read some behind the last, whose products nobody stores.
    n_bytes = stride * rows.n_tiles * 512 + 160 * 128
    return e.scratch("linears rows", n_bytes), e.scratch("linears backs", 4 * stride), stride
