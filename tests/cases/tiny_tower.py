"""TinyTower: a row of the table of tiny random towers, and tensors that many of them have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.cases.shapes import PATCH, matrix, norm
from woolly.quant import GGMLType

SIDE, TEXT = 8, 64  # patches of a side of the trained image; width of the text model


@dataclass(frozen=True)
class TinyTower:
    name: str
    projector: str
    grids: tuple[tuple[int, int, int], ...]  # of the images of its golden
    root: dict[str, tuple[int, ...]]  # shapes of tensors outside blocks
    width: int = 32
    n_layers: int = 2
    heads: int = 2
    kv_heads: int = 0  # 0: as many as heads
    ffn: int = 48
    gated: bool = False
    rms: bool = False
    fused: bool = False  # one matrix of q, k and v
    biases: bool = True  # of attention's and the network's matrices
    more: dict[str, int] = field(default_factory=dict)  # lengths of further vectors of each block
    extra: dict[str, Any] = field(default_factory=dict)  # keys after "clip."
    type: GGMLType = GGMLType.F32
    patch: int = PATCH


FILTERS = {"v.patch_embd.weight": (32, 3, PATCH, PATCH)}
TWO_FRAMES = FILTERS | {"v.patch_embd.weight.1": (32, 3, PATCH, PATCH)}
BIAS = {"v.patch_embd.bias": (32,)}
TABLE = {"v.position_embd.weight": (SIDE**2, 32)}
CLASS = {"v.class_embd": (32,), "v.position_embd.weight": (SIDE**2 + 1, 32)}
SQUARE = ((1, SIDE, SIDE),)
MERGER = matrix("mm.0", 128, 128) | matrix("mm.2", TEXT, 128)
PROJECTED = norm("mm.input_norm", 128) | matrix("mm.up", 128, 128) | matrix("mm.down", TEXT, 128)
DEEP = {key: n for i in (0, 1) for key, n in (norm(f"v.deepstack.{i}.norm", 128)
        | matrix(f"v.deepstack.{i}.fc1", 128, 128) | matrix(f"v.deepstack.{i}.fc2", TEXT, 128)).items()}  # fmt: skip
