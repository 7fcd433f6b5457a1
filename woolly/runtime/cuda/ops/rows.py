"""Emitters of row-wise and element-wise ops: native/cuda/weights/embed.cu, rows.cu and norms.cu."""

from __future__ import annotations

from woolly.errors import UnsupportedError
from woolly.plan import Step, Weight
from woolly.quant import GGMLType
from woolly.runtime.cuda.emitters import emits
from woolly.runtime.cuda.weight_tiles import can_pack
from woolly.runtime.gpu.codebooks import points_of
from woolly.runtime.gpu.device import Address, Argument
from woolly.runtime.gpu.emitter import Emitter, GridRows

# In the order of native/cuda/primitives/activations.cuh.
ACTIVATIONS = (
    *("silu", "gelu", "gelu_erf", "relu", "relu2", "sigmoid", "softplus", "tanh", "clamped", "gelu_quick", "exp"),
    *("clipped", "root"),
)
_POOLS = ("mean", "first", "last")
_BLOCK = 256  # threads
_NONE = Address(0)


def threads_for(n: int, most: int = _BLOCK) -> int:
    """Return the threads of a block for n elements, a multiple of the warp size."""
    return min(most, -(-n // 32) * 32)


def _elements(e: Emitter, kernel: str, step: Step, *args: Argument, each: int = 1) -> None:
    """Launch an element-wise kernel: inputs, weights, output, width, kind, then `args`.

    A thread handles `each` adjacent columns.
    """
    value = step.output
    columns = -(-e.width(value) // each)
    threads = threads_for(columns)
    grid = (GridRows(e.kind(value)), -(-columns // (4 // each * threads)))
    inputs = [e.value(v) for v in step.inputs]
    weights = [e.vector(w.name) for w in step.weights]
    e.launch(kernel, grid, threads, *inputs, *weights, e.value(value), e.width(value), e.kind(value), *args)


def _table(e: Emitter, weight: Weight) -> tuple[str, Address, Address]:
    """Return a table's type name, data address and codebook address."""
    if weight.type is not GGMLType.F32 and not can_pack(weight.type):
        raise UnsupportedError(f"the cuda backend does not support {weight.type.name} lookup tables")
    return weight.type.name.lower(), e.raw(weight.name), points_of(e, weight.type)


@emits("embed")
def _embed(e: Emitter, step: Step) -> None:
    name, table, points = _table(e, step.weights[0])
    width = e.width(step.output)
    grid = (GridRows(0), -(-width // (4 * threads_for(width))))
    e.launch(f"embed_{name}", grid, threads_for(width), table, points, e.value(step.output), width)


@emits("embed_position")
def _embed_position(e: Emitter, step: Step) -> None:
    name, table, points = _table(e, step.weights[0])
    value, width = step.output, e.width(step.output)
    grid = (GridRows(e.kind(value)), -(-width // (4 * threads_for(width))))
    x, y = e.value(step.inputs[0]), e.value(value)
    e.launch(f"embed_position_{name}", grid, threads_for(width), table, points, x, y, width, e.kind(value))


@emits("embed_token_type")
def _embed_token_type(e: Emitter, step: Step) -> None:
    width = e.width(step.output)
    table, x, y = e.vector(step.weights[0].name), e.value(step.inputs[0]), e.value(step.output)
    e.launch("embed_token_type", (GridRows(0),), threads_for(width), table, x, y, width, step.integer("separator"))


@emits("add")
def _add(e: Emitter, step: Step) -> None:
    _elements(e, "add", step, each=4)


@emits("clamp", "clip", "scale", "softcap", "xielu")
def _numbers(e: Emitter, step: Step) -> None:
    _elements(e, step.op, step, *(step.number(name) for name in step.kind.attributes), each=4)


@emits("unary")
def _unary(e: Emitter, step: Step) -> None:
    if step.text("kind") not in ACTIVATIONS:
        raise UnsupportedError(f"the cuda backend does not support the activation {step.text('kind')}")
    _elements(e, "unary", step, ACTIVATIONS.index(step.text("kind")), each=4)


@emits("glu")
def _glu(e: Emitter, step: Step) -> None:
    _elements(e, "glu", step, ACTIVATIONS.index(step.text("act")), step.number("limit"), each=4)


@emits("mul")
def _mul(e: Emitter, step: Step) -> None:
    run = e.width(step.inputs[0]) // e.width(step.inputs[1])
    _elements(e, "mul", step, run, each=4 if run == 1 else 1)


@emits("mul_weight")
def _mul_weight(e: Emitter, step: Step) -> None:
    _elements(e, "mul_weight", step, step.weights[0].shape[0], max(1, step.integer("run")))


@emits("add_weight")
def _add_weight(e: Emitter, step: Step) -> None:
    _elements(e, "add_weight", step, step.weights[0].shape[0])


@emits("lerp")
def _lerp(e: Emitter, step: Step) -> None:
    _elements(e, "lerp", step, e.width(step.inputs[0]))


@emits("slice")
def _slice(e: Emitter, step: Step) -> None:
    width, first = e.width(step.inputs[0]), step.integer("first")
    _elements(e, "slice", step, width, width // step.integer("groups"), first, step.integer("last") - first)


@emits("concat")
def _concat(e: Emitter, step: Step) -> None:
    heads, is_shared = step.integer("heads"), step.integer("shared")
    n_a, n_b = (e.width(value) for value in step.inputs)
    _elements(e, "concat", step, n_a // heads, n_b if is_shared else n_b // heads, is_shared)


@emits("rope")
def _rope(e: Emitter, step: Step) -> None:
    rope = step.rope()
    assert rope is not None
    value = step.output
    threads = threads_for(e.width(value))
    grid = (GridRows(e.kind(value)), -(-e.width(value) // (4 * threads)))
    style = int(rope.style == "adjacent")
    args: list[Argument] = [e.value(step.inputs[0]), e.value(value), e.width(value), e.kind(value)]
    e.launch("rope", grid, threads, *args, rope.head_dim, rope.n_rot, style, e.column(step))


@emits("output_rows")
def _output_rows(e: Emitter, step: Step) -> None:
    width = e.width(step.output)
    grid = (GridRows(1), -(-width // (4 * threads_for(width))))
    args = (e.value(step.inputs[0]), e.value(step.output), width)
    e.launch("output_rows", grid, threads_for(width), *args, kind=1, early=True)


@emits("add_lora")
def _add_lora(e: Emitter, step: Step) -> None:
    _elements(e, "add_lora", step, step.integer("adapter"), step.number("factor"))


def _groups(e: Emitter, kernel: str, step: Step, n: int, weights: list[Address], *args: Argument) -> None:
    """Launch a kernel with one block per group of n columns: inputs, weights, output, kind, n, then `args`."""
    value = step.output
    grid = (GridRows(e.kind(value)), e.width(value) // n)
    inputs = [e.value(v) for v in step.inputs]
    e.launch(kernel, grid, threads_for(-(-n // 4)), *inputs, *weights, e.value(value), e.kind(value), n, *args)


@emits("rms_norm")
def _rms_norm(e: Emitter, step: Step) -> None:
    n = step.weights[0].shape[0] if step.weights else step.integer("group")
    weight = e.vector(step.weights[0].name) if step.weights else _NONE
    _groups(e, "rms_norm", step, n, [weight], step.number("eps"))


@emits("hidden")
def _hidden(e: Emitter, step: Step) -> None:
    n = e.width(step.output)
    weight = e.vector(step.weights[0].name) if step.weights else _NONE
    e.launch("hidden", (GridRows(0),), threads_for(-(-n // 4)), weight, e.value(step.output), n, step.number("eps"))


@emits("layer_norm")
def _layer_norm(e: Emitter, step: Step) -> None:
    n = step.integer("group")
    weights = [*(e.vector(w.name) for w in step.weights), _NONE, _NONE][:2]
    has_own = bool(step.weights) and len(step.weights[0].shape) > 1 and step.weights[0].shape[0] > 1
    _groups(e, "layer_norm", step, n, weights, n if has_own else 0, step.number("eps"))


@emits("gaussian_topk")
def _gaussian_topk(e: Emitter, step: Step) -> None:
    _groups(e, "gaussian_topk", step, e.width(step.output), [], step.number("deviations"))


@emits("match_rms")
def _match_rms(e: Emitter, step: Step) -> None:
    _groups(e, "match_rms", step, e.width(step.inputs[1]), [], step.number("least"))


@emits("mix_streams")
def _mix_streams(e: Emitter, step: Step) -> None:
    streams = step.integer("streams")
    _groups(e, "mix_streams", step, e.width(step.inputs[0]) // streams, [], streams, step.number("plus"))


@emits("vecdot")
def _vecdot(e: Emitter, step: Step) -> None:
    a, b = (e.value(v) for v in step.inputs)
    value, n = step.output, step.integer("group")
    e.launch(
        "vecdot", (GridRows(e.kind(value)), e.width(value)), threads_for(n), a, b, e.value(value), e.kind(value), n
    )


@emits("pool")
def _pool(e: Emitter, step: Step) -> None:
    width, which = e.width(step.output), _POOLS.index(step.text("kind"))
    grid = (GridRows(1), -(-width // threads_for(width)))
    e.launch("pool", grid, threads_for(width), e.value(step.inputs[0]), e.value(step.output), width, which, kind=1)
