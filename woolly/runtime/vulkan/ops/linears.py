"""Products of rows and matrices: native/gpu/linears."""

from __future__ import annotations

from dataclasses import dataclass

from woolly.plan import Step, Weight
from woolly.runtime.gpu.device import Address
from woolly.runtime.gpu.emit import Emitter, GridRows
from woolly.runtime.vulkan.blocks import Blocks, blocks_of
from woolly.runtime.vulkan.emitters import emits
from woolly.runtime.vulkan.ops.rows import ACTIVATIONS, elements, norm

__all__: list[str] = []

_NONE = Address(0)
# GridRows of weights and of x of a group, as in the kernels, and rows up to which the kernels of few are faster.
_ROWS, _FEW, _TILE, _FLOAT_ROWS = 16, 4, 64, 64
_MOST_OF_FEW = 16


@dataclass(frozen=True)
class _Input:
    """The rows that matrices are multiplied with."""

    value: Address  # f32
    kind: int
    width: int


@dataclass(frozen=True)
class _Product:
    """One matrix of a step: its bias, what is added to its rows, and where they go."""

    weight: Weight
    y: Address
    bias: Address = _NONE
    residual: Address = _NONE
    factor: float = 1.0


@emits("linear", "linears")
def _linears(e: Emitter, step: Step) -> None:
    attributes = dict(step.attributes)
    epilogue = str(attributes.get("epilogue", "none"))
    factor = float(step.number("scale")) if "scale" in attributes else 1.0
    rows = _normed(e, step)
    pairs: list[tuple[Weight, Address]] = []
    for weight, role in zip(step.weights, step.roles, strict=True):
        if role == "weight":
            pairs.append((weight, _NONE))
        elif role == "bias":
            pairs[-1] = (pairs[-1][0], e.vector(weight))
    if epilogue.startswith("glu:"):
        _gated(e, step, rows, pairs, epilogue.removeprefix("glu:"))
        return
    residual = e.value(step.inputs[1]) if epilogue == "residual" else _NONE
    _products(
        e,
        rows,
        [_Product(w, e.value(y), b, residual, factor) for (w, b), y in zip(pairs, step.outputs, strict=True)],
    )


def _normed(e: Emitter, step: Step) -> _Input:
    """The input of the step, normed if it has a norm."""
    x = step.inputs[0]
    rows, width = _Input(e.value(x), e.kind(x), e.width(x)), e.width(x)
    if not (weight := step.by_role("norm")):
        return rows
    to = e.scratch("normed", 4 * e.max_rows * width)
    norm(e, "rms_norm", rows.kind, rows.value, to, width, width, step.number("eps"), e.vector(weight[0]))
    return _Input(to, rows.kind, width)


def _gated(e: Emitter, step: Step, rows: _Input, pairs: list[tuple[Weight, Address]], name: str) -> None:
    """Gate and up to memory of their own, then together."""
    n = pairs[0][0].shape[0]
    gate, up = (e.scratch(f"linears {one}", 4 * n * e.max_rows) for one in ("gate", "up"))
    _products(e, rows, [_Product(w, y, b) for (w, b), y in zip(pairs, (gate, up), strict=True)])
    args = (e.value(step.output), n, rows.kind, ACTIVATIONS.index(name), 0, 0, step.number("limit"))
    elements(e, "glu", rows.kind, n, gate, up, *args)


@emits("per_head_linear")
def _per_head_linear(e: Emitter, step: Step) -> None:
    (weight,) = step.weights
    x = step.inputs[0]
    _products(e, _Input(e.value(x), e.kind(x), e.width(x)), [_Product(weight, e.value(step.output))])


def _products(e: Emitter, rows: _Input, products: list[_Product]) -> None:
    """The input as bytes in each form that a matrix takes, then all products, none of which needs another."""
    found = [(blocks_of(e, product.weight), product) for product in products]
    forms: dict[int, tuple[Address, Address, Address]] = {0: (rows.value, _NONE, _NONE)}
    for columns in sorted({blocks.columns for blocks, _ in found} - {0}):
        forms[columns] = _quantized(e, rows, columns, early=len(forms) > 1)
    is_first = True
    for blocks, product in found:
        _product(e, rows, blocks, product, forms[blocks.columns], early=not is_first)
        is_first = False


def _quantized(e: Emitter, rows: _Input, columns: int, early: bool) -> tuple[Address, Address, Address]:
    """Bytes, scales and sums of the rows."""
    n = e.max_rows * rows.width
    sizes = (("bytes", n), ("scales", 4 * n // columns), ("sums", n // 4))
    to = tuple(e.scratch(f"quantized {columns} {name}", size) for name, size in sizes)
    grid = (rows.width // columns, GridRows(rows.kind))
    args = (rows.value, *to, rows.width, rows.kind)
    e.launch(f"quantize_{columns}", grid, columns // 4, *args, kind=rows.kind, early=early)
    return to[0], to[1], to[2]


def _product(
    e: Emitter, rows: _Input, blocks: Blocks, product: _Product, form: tuple[Address, Address, Address], early: bool
) -> None:
    *heads, n, columns = product.weight.shape
    n_heads = heads[0] if heads else 1
    args = (
        *(blocks.address, blocks.points, *form, product.bias, product.residual, product.y),
        *(n, columns, blocks.stride, rows.width, n_heads * n, rows.kind, product.factor),
    )
    kind = rows.kind
    if blocks.columns == 0:
        grid = (-(-n // _FLOAT_ROWS), GridRows(kind), n_heads)
        e.launch(f"linear_{blocks.name}", grid, _FLOAT_ROWS, *args, kind=kind, early=early)
        return
    one, few = (-(-n // _ROWS), GridRows(kind), n_heads), (-(-n // _ROWS), GridRows(kind, per=_FEW), n_heads)
    many = (-(-n // _TILE), GridRows(kind, per=_TILE), n_heads)
    e.launch(f"linear_one_{blocks.name}", one, 128, *args, most=1, kind=kind, early=early)
    e.launch(f"linear_few_{blocks.name}", few, 128, *args, least=2, most=_MOST_OF_FEW, kind=kind, early=early)
    e.launch(f"linear_many_{blocks.name}", many, 256, *args, least=_MOST_OF_FEW + 1, kind=kind, early=early)
