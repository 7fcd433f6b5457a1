"""Matrix products. Kernels: native/gpu/linears."""

from __future__ import annotations

from dataclasses import dataclass, replace

from woolly.errors import UnsupportedError
from woolly.plan import Step, Weight
from woolly.runtime.gpu.device import Address, Argument, Number
from woolly.runtime.gpu.emitter import Emitter, GridRows
from woolly.runtime.options import kv_type_pair
from woolly.runtime.vulkan.cooperative_matrix import TYPES as TILED_TYPES
from woolly.runtime.vulkan.emitters import emits
from woolly.runtime.vulkan.ops.rows import activation, elements, norm
from woolly.runtime.vulkan.weight_blocks import Blocks, blocks_of, columns_of

_NONE = Address(0)
# Tile sizes as in the kernels (weight rows and x rows per group), and maximum rows of the small-batch kernels.
_ROWS, _FEW, _TILE, _FLOAT_ROWS = 16, 4, 64, 64
MAX_FEW_ROWS = 16
MAX_SPLIT_ROWS = 8  # maximum rows for split (flash-decoding) attention
_QUANTIZED = 256  # columns per group of native/gpu/linears/quantize.slang
_MIN_GROUP_ROWS = 64  # minimum rows for a norm with one group per row
# Matrix unit kernels of native/gpu/linears/tiles.slang: name, x rows per tile, maximum rows for which the kernel is
# fastest. Matrices with few rows use squares instead of tiles. H200, Q4_K 4,096 x 4,096: 36 us for 32 rows (strips), 50
# us for 64 (squares), 124 us for 512 (tiles).
_UNIT_OUTS, _SMALL = 64, 2048
_UNIT_FORMS = (("slips", 16, 16), ("strips", 32, 32), ("squares", 64, 64), ("tiles", 128, 1 << 30))
# Maximum rows for which dot products are faster: 8 rows of an 8B model take 10.2 ms, and 11.9 ms with slips.
_MAX_BEFORE_UNITS = 8
# Single-row kernel for types with small blocks; `_supers` has the kernels of K-quants.
_MIN_SUPERS = (("one", 1, 4, 1),)
_ORDER_THREADS = 256  # as in native/gpu/experts/order.slang
_MAX_GROUPS = 65535  # groups along a grid axis: Vulkan's guaranteed minimum


@dataclass(frozen=True)
class InputRows:
    """Input of matrix products."""

    value: Address  # f32
    kind: int
    width: int
    norm: Address = _NONE  # weight of a norm fused into quantization; only if no product takes floats
    eps: float = 0.0
    quantized: int = 0  # block columns if the previous step has already quantized the value
    merged: bool = False  # quantized by the attention merge, for small batches with a short context


@dataclass(frozen=True)
class Product:
    """One matrix product of a step, with bias, residual and output."""

    weight: Weight
    y: Address
    bias: Address = _NONE
    residual: Address = _NONE
    factor: float = 1.0
    scales: Address = _NONE  # scale per expert


@dataclass(frozen=True)
class Routes:
    """Expert routing, as computed by native/gpu/experts. A slot is a (row, expert) pair."""

    chosen: Address  # expert of each slot
    order: Address  # slots sorted by expert
    firsts: Address  # offset of each expert in `order`
    n_used: int  # slots per batch row
    n_shared: int  # slots per input row
    shares: Address = _NONE  # factors of the inputs
    n_alike: int = 1  # maximum slots of a row that use the same matrix

    def struct(self, product: Product) -> tuple[Number, ...]:
        """Return the routing struct of a product for the kernels."""
        return self.chosen, self.order, self.firsts, product.scales, self.shares, self.n_used, self.n_shared


@emits("linear", "linears")
def _linears(e: Emitter, step: Step) -> None:
    attributes = dict(step.attributes)
    epilogue = str(attributes.get("epilogue", "none"))
    factor = float(step.number("scale")) if "scale" in attributes else 1.0
    rows = _input(e, step)
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
    wanted = [Product(w, e.value(y), b, residual, factor) for (w, b), y in zip(pairs, step.outputs, strict=True)]
    products(e, rows, wanted)


def _input(e: Emitter, step: Step) -> InputRows:
    """Return the input of the step, with the norm fused into quantization if no product takes floats."""
    columns = _forms(step)
    if not (weight := step.by_role("norm")):
        x, before = step.inputs[0], e.new_stream(-1)
        merged = bool(before is not None and merged_form(e, before, step))
        left = columns.pop() if before is not None and _leaves_bytes(before, step) else 0
        return InputRows(e.value(x), e.kind(x), e.width(x), quantized=left, merged=merged)
    if 0 in columns:
        return normed(e, step)
    x = step.inputs[0]
    return InputRows(e.value(x), e.kind(x), e.width(x), e.vector(weight[0]), step.number("eps"))


def _forms(step: Step) -> set[int]:
    """Return the block columns of all input formats of a step; 0: floats."""
    return {columns_of(weight) for weight, role in zip(step.weights, step.roles, strict=True) if role == "weight"}


def _leaves_bytes(step: Step, after: Step) -> bool:
    """True if a gated step also quantizes its output for the next step."""
    is_gated = step.op == "linears" and str(dict(step.attributes).get("epilogue")).startswith("glu:")
    return is_gated and _form_of(step, after) > 0


def is_plain_cache(kv_type: str) -> bool:
    """True if K and V have the same unrotated type (not q4), which fused small-batch kernels require."""
    k, v = kv_type_pair(kv_type)
    return k == v != "q4"


def merged_form(e: Emitter, step: Step, after: Step | None) -> int:
    """Return the block columns of attention output quantized for the next step; 0: not quantized."""
    if step.op != "attend" or len(step.inputs) > 1 or after is None or not is_plain_cache(e.kv_type):
        return 0
    return _form_of(step, after)


def _form_of(step: Step, after: Step) -> int:
    """Return the block columns if the next step's products all take the same quantized format, else 0."""
    if after.op not in ("linear", "linears") or after.inputs[0] != step.output or after.by_role("norm"):
        return 0
    forms = _forms(after)
    return forms.pop() if len(forms) == 1 else 0


def normed(e: Emitter, step: Step) -> InputRows:
    """Return the input of the step, after its norm if it has one."""
    x = step.inputs[0]
    rows, width = InputRows(e.value(x), e.kind(x), e.width(x)), e.width(x)
    if not (weight := step.by_role("norm")):
        return rows
    to = e.scratch("normed", 4 * e.max_rows * width)
    norm(e, "rms_norm", rows.kind, rows.value, to, width, width, step.number("eps"), e.vector(weight[0]))
    return InputRows(to, rows.kind, width)


def _gated(e: Emitter, step: Step, rows: InputRows, pairs: list[tuple[Weight, Address]], name: str) -> None:
    """Compute gate and up in scratch memory, then the gated activation."""
    n = pairs[0][0].shape[0]
    gate, up = (e.scratch(f"linears {one}", 4 * n * e.max_rows) for one in ("gate", "up"))
    products(e, rows, [Product(w, y, b) for (w, b), y in zip(pairs, (gate, up), strict=True)])
    after = e.new_stream(1)
    if after is not None and _leaves_bytes(step, after):
        (columns,) = _forms(after)
        last = (up, e.value(step.output), step.number("limit"), activation(name))
        _quantize(e, "glu_quantize", InputRows(gate, rows.kind, n), columns, *last)
        return
    args = (e.value(step.output), n, rows.kind, activation(name), 0, 0, step.number("limit"))
    elements(e, "glu", rows.kind, n, gate, up, *args)


@emits("per_head_linear")
def _per_head_linear(e: Emitter, step: Step) -> None:
    (weight,) = step.weights
    x = step.inputs[0]
    *_, n, columns = weight.shape
    if len(weight.shape) == 2:  # one matrix with the rows of all heads
        heads = e.width(x) // columns
        weight = replace(weight, shape=(heads, n // heads, columns))
    products(e, InputRows(e.value(x), e.kind(x), e.width(x)), [Product(weight, e.value(step.output))])


@emits("linear_id")
def _linear_id(e: Emitter, step: Step) -> None:
    """Multiply all rows by the first matrix, then the rows selected by the batch by the second."""
    x, y = step.inputs[0], e.value(step.output)
    rows, (weight, other) = InputRows(e.value(x), e.kind(x), e.width(x)), step.weights
    products(e, rows, [Product(weight, y)])
    chosen, order, firsts = (e.scratch(f"rows {name}", 4 * (e.max_rows + 2)) for name in ("chosen", "order", "firsts"))
    e.launch("experts_order", (1,), _ORDER_THREADS, chosen, order, firsts, rows.kind, 1, 0, kind=rows.kind)
    if columns_of(weight) == columns_of(other):
        rows = replace(rows, quantized=columns_of(other))  # quantized by the first product
    products(e, rows, [Product(other, y)], Routes(chosen, order, firsts, 1, 1))


def products(e: Emitter, rows: InputRows, wanted: list[Product], routes: Routes | None = None) -> None:
    """Quantize the input to each required format, then queue all products, which are independent."""
    found = [(blocks_of(e, product.weight), product) for product in wanted]
    forms: dict[int, tuple[Address, Address, Address]] = {0: (rows.value, _NONE, _NONE)}
    for columns in sorted({blocks.columns for blocks, _ in found} - {0}):
        forms[columns] = _quantized(e, rows, columns, early=len(forms) > 1)
    is_first = True
    for blocks, product in found:
        _product(e, rows, blocks, product, forms[blocks.columns], routes, early=not is_first)
        is_first = False


def _quantized(e: Emitter, rows: InputRows, columns: int, early: bool) -> tuple[Address, Address, Address]:
    """Return addresses of int8 values, scales and block sums of the rows, quantizing them if needed."""
    if rows.quantized:
        return quantized_places(e, rows.width, columns)
    kernel = "norm_quantize" if rows.norm else "quantize"
    return _quantize(e, kernel, rows, columns, rows.norm, _NONE, float(rows.eps), 0, early=early)


def quantized_places(e: Emitter, width: int, columns: int) -> tuple[Address, Address, Address]:
    """Return scratch addresses for int8 values, scales and block sums of rows."""
    n = e.max_rows * width
    sizes = (("bytes", n), ("scales", 4 * n // columns), ("sums", n // 4))
    a, b, c = (e.scratch(f"quantized {columns} {name}", size) for name, size in sizes)
    return a, b, c


def _quantize(
    e: Emitter, kernel: str, rows: InputRows, columns: int, *last: Argument, early: bool = False
) -> tuple[Address, Address, Address]:
    """Launch a kernel of native/gpu/linears/quantize.slang. `last`: trailing arguments."""
    to = quantized_places(e, rows.width, columns)
    grid = (-(-rows.width // _QUANTIZED), GridRows(rows.kind))
    args = (rows.value, *to, rows.width, rows.kind, *last)
    if rows.merged:
        e.launch(f"{kernel}_{columns}", grid, 64, *args, most=MAX_SPLIT_ROWS, far=True)
    least, most = MAX_SPLIT_ROWS + 1 if rows.merged else 0, 1 << 30
    if kernel == "norm_quantize":
        most, whole = _MIN_GROUP_ROWS - 1, (1, GridRows(rows.kind))
        e.launch(f"{kernel}_rows_{columns}", whole, 64, *args, least=_MIN_GROUP_ROWS, kind=rows.kind, early=early)
    e.launch(f"{kernel}_{columns}", grid, 64, *args, least=least, most=most, kind=rows.kind, early=early)
    return to


def _product(
    e: Emitter,
    rows: InputRows,
    blocks: Blocks,
    product: Product,
    form: tuple[Address, Address, Address],
    routes: Routes | None,
    early: bool,
) -> None:
    *matrices, n, columns = product.weight.shape
    n_matrices, kind = matrices[0] if matrices else 1, rows.kind
    width, total = (n, columns) if routes else (n_matrices * n, rows.width)
    args = (
        *(blocks.address, blocks.points, *form, product.bias, product.residual, product.y),
        *(n, columns, blocks.stride, total, width, kind, product.factor),
        routes.struct(product) if routes else _NONE,
    )
    # Small batches process experts slot by slot, larger ones expert by expert.
    each, times = (1, routes.n_used) if routes else (n_matrices, 1)
    if blocks.columns == 0:
        if routes and e.max_rows * times > _MAX_GROUPS:
            raise UnsupportedError(
                f"Vulkan and Metal have no experts of {blocks.name} for batches of {e.max_rows} rows with {times}"
                f" experts each: rows times experts may be up to {_MAX_GROUPS}"
            )
        grid = (-(-n // _FLOAT_ROWS), GridRows(kind, times=times), each)
        e.launch(f"linear_{blocks.name}", grid, _FLOAT_ROWS, *args, kind=kind, early=early)
        return
    tiled = blocks.name in TILED_TYPES and bool(e.device.architecture)
    least, fewest = 1, _supers(tiled) if blocks.columns == 256 else _MIN_SUPERS
    # If a grid is too long (large vocabulary), a later kernel takes over; results are bit-identical.
    for name, of_x, of_weights, most in fewest[:1] if routes else fewest:
        grid, last = (
            (-(-n // of_weights), GridRows(kind, per=of_x, times=times), each),
            MAX_FEW_ROWS if routes else most,
        )
        if grid[0] <= _MAX_GROUPS or routes:
            e.launch(f"linear_{name}_{blocks.name}", grid, 128, *args, least=least, most=last, kind=kind, early=early)
            least = last + 1
    for name, outs, per, most, threads in _forms_of_many(tiled, n, routes is not None):
        if least <= most:
            grid = (-(-n // outs), GridRows(kind, per=per, times=routes.n_alike if routes else 1), n_matrices)
            e.launch(f"{name}_{blocks.name}", grid, threads, *args, least=least, most=most, kind=kind, early=early)
            least = most + 1


def _supers(tiled: bool) -> tuple[tuple[str, int, int, int], ...]:
    """Return kernels of native/gpu/linears/supers.slang: name, x rows and weight rows per group, maximum rows."""
    return ("one", 1, 8, 1), ("two", 2, 8, 2), ("four", 4, 4, _MAX_BEFORE_UNITS if tiled else MAX_FEW_ROWS)


def _forms_of_many(tiled: bool, n: int, is_routed: bool) -> list[tuple[str, int, int, int, int]]:
    """Return kernels of larger batches: name, weight rows and x rows per group, maximum rows, threads."""
    if not tiled:
        few = [] if is_routed else [("linear_few", _ROWS, _FEW, MAX_FEW_ROWS, 128)]
        return [*few, ("linear_many", _TILE, _TILE, 1 << 30, 256)]
    # Batch rows are divided among experts, so smaller tiles suffice.
    forms = _UNIT_FORMS if n > _SMALL and not is_routed else (*_UNIT_FORMS[:2], ("squares", 64, 1 << 30))
    return [(f"linear_{name}", _UNIT_OUTS, per, most, 128) for name, per, most in forms]
