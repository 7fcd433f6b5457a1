"""SAM's encoder: window or global attention with decomposed relative positions (lines and columns).

As in `relative_positions.py`, sinusoids of a distance are products of sinusoids of two positions, here of lines and of
columns. Windows extend beyond the image. In the padding, keys and values are the biases; global layers mask it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from woolly.errors import ModelError
from woolly.gguf import Tensor
from woolly.multimodal.encoder.derived_tensors import as_matrix, f32_tensor
from woolly.multimodal.encoder.exact_math import product
from woolly.multimodal.encoder.params import TowerParams
from woolly.multimodal.encoder.patch_layout import Int32, PatchLayout
from woolly.multimodal.encoder.relative_positions import fourier_tensors, rotation_tensors
from woolly.multimodal.encoder.vit import mlp
from woolly.plan import Handle, Rope, Tracer
from woolly.plan.ops.attention import Mask

Float64 = npt.NDArray[np.float64]

EPS = 1e-6
_GLOBAL = (2, 5, 8, 11)  # layers with global attention; not in files
_WINDOW = 14  # positions per side
_MAX_LAYERS = 1024
_UNSEEN = -1e9  # added to the scores of masked padding
# Columns of `gather_rows`: index in the position table, image or padding, index of the image size, and index of the key
# prefix.
_POSITION, _IS_PLACE, _KEY, _SIZES = 0, 1, 2, 3


@dataclass(frozen=True)
class Sam:
    """Parameters of the encoder. The sides of an image have the length of the position table, or one of `sides`."""

    width: int
    n_layers: int
    heads: int
    window: int
    sides: tuple[int, ...]  # positions per side for each image size; the trained size is first

    @property
    def head_dim(self) -> int:
        """Columns of a head."""
        return self.width // self.heads

    def reach(self, layer: int) -> int:
        """Return the number of distances per direction in a layer's relative positions."""
        return self.sides[0] if layer in _GLOBAL else self.window

    def padded(self, side: int) -> int:
        """Return the positions per side, including window padding."""
        return -(-side // self.window) * self.window

    def build(self, p: Tracer, hp: TowerParams) -> Handle:
        """Build the encoder and return the rows of the last layer."""
        x = p.linear(p.input(width=hp.patch), "v.sam.patch_embd", width=self.width)
        nothing = x * 0.0
        is_place = p.embedding_bag(nothing, "v.sam.ones", first=_IS_PLACE)
        sizes = [p.embedding_bag(nothing, "v.sam.ones", first=_SIZES + i) for i in range(len(self.sides))]
        x = p.embedding_bag(x, "v.sam.pos_embd", first=_POSITION)
        keys: dict[bool, Handle] = {}
        for i in range(self.n_layers):
            with p.scope(f"v.sam.blk.{i}"):
                h = p.layer_norm(x, "pre_ln", eps=EPS) * is_place
                x = x + p.linear(self._attention(p, h, i, sizes, keys), "attn.out", width=self.width)
                x = x + mlp(p, p.layer_norm(x, "post_ln", eps=EPS), "mlp.lin1", "mlp.lin2")
        return x

    def _attention(self, p: Tracer, h: Handle, layer: int, sizes: list[Handle], keys: dict[bool, Handle]) -> Handle:
        heads, reach, is_global = self.heads, self.reach(layer), layer in _GLOBAL
        q, k, v = (p.linear(h, "attn.qkv", width=self.width, first=i * self.width) for i in range(3))
        p.skip("attn.pos_h", "attn.pos_w")  # converted to sinusoids
        read = q
        if is_global:  # distances differ by image size
            read = q * sizes[0]
            for one in sizes[1:]:
                read = p.concat(read, q * one, heads=heads)
        waves = p.per_head_linear(read, "waves", heads=heads, width=4 * reach)
        shared = f"/v.sam.{'all' if is_global else 'window'}"
        rope = Rope(4 * reach, 4 * reach, 1.0, "neox", sections=(reach, reach))
        if is_global not in keys:
            begun = p.slice(waves, first=0, width=4 * reach) * 0.0
            begun = p.embedding_bag(begun, shared, first=_KEY) if is_global else begun + p.vector(shared)
            keys[is_global] = p.rope(begun, rope, f"{shared}.divisors")
        rotated = p.rope(waves, rope, f"{shared}.divisors")
        if is_global:
            rotated = rotated + p.vector(f"{shared}.seeing")
        q, k = p.concat(q, rotated, heads=heads), p.concat(k, keys[is_global], heads=heads, shared=True)
        mask: Mask = "all" if is_global else "block"
        return p.attention(q, k, v, head_dim=q.width // heads, scale=self.head_dim**-0.5, mask=mask)

    def remake(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Reshape convolutions to matrices, resize the position table to each size, and compute rotary coefficients."""
        n, table = self.sides[0], _array(tensors, "v.sam.pos_embd.weight")
        if table.size != n**2 * self.width or "v.sam.patch_embd.weight" not in tensors:
            raise ModelError(
                f"the encoder has no patches, or v.sam.pos_embd.weight is not a table of {n} x {n} positions"
            )
        table = table.reshape(n, n, self.width)
        tables = [resized(table, side).reshape(-1, self.width) for side in self.sides]
        out = {
            "v.sam.pos_embd.weight": f32_tensor("v.sam.pos_embd.weight", np.concatenate(tables)),
            "v.sam.ones.weight": f32_tensor("v.sam.ones.weight", np.ones((1, self.width))),
            "v.sam.patch_embd.weight": as_matrix(tensors["v.sam.patch_embd.weight"]),
        }
        for i in range(self.n_layers):
            name, reach = f"v.sam.blk.{i}", self.reach(i)
            sides = self.sides if i in _GLOBAL else (self.window,)
            by_axis = [_array(tensors, f"{name}.attn.pos_{axis}.weight") for axis in "hw"]
            parts = [self._waves(by_axis, side, reach) for side in sides]
            weight = np.concatenate(parts, axis=-1)
            out[f"{name}.waves.weight"] = f32_tensor(
                f"{name}.waves.weight", np.broadcast_to(weight, (self.heads, *weight.shape))
            )
        for name, reach in (("v.sam.all", self.sides[0]), ("v.sam.window", self.window)):
            out |= self._keys(name, reach)
        return out

    def _waves(self, by_axis: list[Float64], side: int, reach: int) -> Float64:
        """Return the matrix from q to rotary coefficients, [4 * reach, head_dim], for images with this side length.

        Rows are coefficients of lines, then of columns, twice.
        """
        halves = []
        for table in by_axis:
            # Images with this side do not use larger distances, so their vectors are zeros.
            by_distance = np.zeros((2 * reach - 1, self.head_dim))
            by_distance[reach - side : reach + side - 1] = _stretched(table, 2 * side - 1)
            waves = fourier_tensors("waves", by_distance[None], 1)["waves.weight"].dequantize()
            # Attention scales all scores, so cancel the scale for relative positions.
            halves.append(waves.reshape(2, reach, self.head_dim).astype(np.float64) * self.head_dim**0.5)
        return np.concatenate(halves, axis=1).reshape(4 * reach, self.head_dim)

    def _keys(self, name: str, reach: int) -> dict[str, Tensor]:
        """Return the unrotated key prefix, the rope divisors, and the mask of the padding."""
        given = rotation_tensors(name, reach)
        divisors = np.tile(given[f"{name}.divisors"].dequantize(), 2)
        begun = np.repeat(np.array([1.0, 0.0]), 2 * reach)
        out = {f"{name}.divisors": f32_tensor(f"{name}.divisors", divisors)}
        if name != "v.sam.all":
            return out | {f"{name}.weight": f32_tensor(f"{name}.weight", begun)}
        # The sine of the constant term has no coefficient, so its pair carries the mask.
        still = 2 * reach
        beyond, seeing = begun.copy(), np.zeros(4 * reach)
        beyond[still], seeing[still] = _UNSEEN, 1.0
        return out | {
            f"{name}.weight": f32_tensor(f"{name}.weight", np.stack([begun, beyond])),
            f"{name}.seeing.weight": f32_tensor(f"{name}.seeing.weight", np.tile(seeing, self.heads)),
        }

    def patch_layout(self, side: int) -> PatchLayout:
        """Return the positions by windows, including padding. Results are in raster order."""
        if side not in self.sides:
            known = " or ".join(f"{one} x {one}" for one in self.sides)
            raise ValueError(f"the encoder reads images of {known} patches, not {side} x {side}")
        window, n = self.window, self.padded(side) // self.window
        lines, columns = (
            one.reshape(n, window, n, window).transpose(0, 2, 1, 3).reshape(-1)
            for one in np.mgrid[: n * window, : n * window]
        )
        is_place = (lines < side) & (columns < side)
        order = np.where(is_place, lines * side + columns, -1).astype(np.int32)
        outputs = np.flatnonzero(is_place).astype(np.int32)
        begin = np.arange(len(order), dtype=np.int32) // window**2 * window**2
        index = self.sides.index(side)
        first = sum(one**2 for one in self.sides[:index])
        gather_rows = np.full((len(order), _SIZES + len(self.sides)), -1, np.int32)
        gather_rows[:, _POSITION] = np.where(is_place, order + first, -1)
        gather_rows[:, _IS_PLACE] = np.where(is_place, 0, -1)
        gather_rows[:, _KEY] = np.where(is_place, 0, 1)
        gather_rows[:, _SIZES + index] = 0
        return PatchLayout(
            order,
            outputs,
            results=np.argsort(order[outputs]).astype(np.int32),
            rope_positions=np.stack([lines, columns]).astype(np.int32),
            attn_ranges=np.stack([begin, begin + window**2], axis=1),
            gather_rows=gather_rows,
            gather_weights=np.ones(gather_rows.shape, np.float32),
        )


def read_sam(hp: TowerParams, others: Sequence[int]) -> Sam:
    """Read the parameters from the file. `others` has further sides, in positions, in addition to the trained one."""
    width, heads = hp.keys.positive("vision.sam.embedding_length"), hp.keys.positive("vision.sam.head_count")
    n_layers, window = hp.keys.positive("vision.sam.block_count"), hp.keys.positive("vision.window_size", _WINDOW)
    if width % heads or n_layers > _MAX_LAYERS or window > hp.side:
        raise ModelError(
            f"SAM cannot have {n_layers} layers (at most {_MAX_LAYERS}) of width {width} with {heads} heads, and"
            f" windows of {window} in images of {hp.side} patches per side"
        )
    return Sam(width, n_layers, heads, window, (hp.side, *others))


def _array(tensors: dict[str, Tensor], name: str) -> Float64:
    if name not in tensors:
        raise ModelError(f"tensor {name} is missing")
    return tensors[name].dequantize().astype(np.float64)


def resized(table: Float64, side: int) -> Float64:
    """Resize a table [n, n, width] with torch's antialiased bicubic kernel."""
    if len(table) == side:
        return table
    gather_weights = _bicubic(len(table), side)
    out: Float64 = product(gather_weights, product(gather_weights, table).swapaxes(0, 1)).swapaxes(0, 1)
    return out


def _bicubic(n: int, side: int) -> Float64:
    """Return the weights of bicubic resampling, [side, n]. The kernel widens when the table shrinks."""
    scale = n / side
    wide = max(scale, 1.0)
    apart = np.abs(np.arange(n)[None] + 0.5 - (np.arange(side)[:, None] + 0.5) * scale) / wide
    near = (1.5 * apart - 2.5) * apart**2 + 1
    far = ((-0.5 * apart + 2.5) * apart - 4) * apart + 2
    gather_weights = np.where(apart < 1, near, np.where(apart < 2, far, 0.0))
    out: Float64 = gather_weights / np.array([math.fsum(one) for one in gather_weights])[:, None]
    return out


def _stretched(table: Float64, n: int) -> Float64:
    """Resize the rows of a table to n by linear interpolation, as torch's `interpolate` without `align_corners`."""
    if len(table) == n:
        return table
    exact = np.clip((np.arange(n) + 0.5) * (len(table) / n) - 0.5, 0, len(table) - 1)
    low = exact.astype(np.int64)
    share = (exact - low)[:, None]
    out: Float64 = table[low] * (1 - share) + table[np.minimum(low + 1, len(table) - 1)] * share
    return out


def around(side: int, stride: int) -> Int32:
    """Return the inputs of a 3 x 3 filter over side x side positions, [n, 9], with stride 1 or 2; -1 is padding."""
    along = np.arange(0, side, stride)[:, None] + np.array([-1, 0, 1])
    along = np.where((along < 0) | (along >= side), -1, along)
    lines, columns = along[:, None, :, None], along[None, :, None, :]
    taps = np.where((lines < 0) | (columns < 0), -1, lines * side + columns)
    return taps.reshape(-1, 9).astype(np.int32)
