"""Shapes of tensors that tiny towers share."""

from __future__ import annotations

PATCH = 4  # pixels of a patch


def norm(name: str, n: int, bias: bool = True) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (n,)} | ({f"{name}.bias": (n,)} if bias else {})


def matrix(name: str, rows: int, columns: int, bias: bool = True) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (rows, columns)} | ({f"{name}.bias": (rows,)} if bias else {})


def sam(width: int, n_layers: int, window: int, side: int) -> dict[str, tuple[int, ...]]:
    """DeepSeek-OCR before CLIP: of two heads, with layers 2, 5, ... that look at everything."""
    out = {"v.sam.patch_embd.weight": (width, 3, PATCH, PATCH), "v.sam.patch_embd.bias": (width,)}
    out |= {"v.sam.pos_embd.weight": (1, side, side, width)}
    for i in range(n_layers):
        reach = side if i % 3 == 2 else window
        block = norm("pre_ln", width) | norm("post_ln", width) | matrix("attn.qkv", 3 * width, width)
        block |= matrix("attn.out", width, width) | matrix("mlp.lin1", 40, width) | matrix("mlp.lin2", width, 40)
        block |= {f"attn.pos_{one}.weight": (2 * reach - 1, width // 2) for one in "hw"}
        out |= {f"v.sam.blk.{i}.{name}": shape for name, shape in block.items()}
    out |= norm("v.sam.neck.1", 16) | norm("v.sam.neck.3", 16)
    filters = {"neck.0": (16, width, 1, 1), "neck.2": (16, 16, 3, 3), "net_2": (24, 16, 3, 3), "net_3": (32, 24, 3, 3)}
    return out | {f"v.sam.{name}.weight": shape for name, shape in filters.items()}
