"""Row-wise and element-wise ops. Kernels: native/gpu/rows and native/gpu/weights/embed.slang."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from woolly.errors import UnsupportedError
from woolly.plan import Step
from woolly.runtime.gpu.device import Address, Argument
from woolly.runtime.gpu.emitter import Emitter, GridRows
from woolly.runtime.vulkan.emitters import emits
from woolly.runtime.vulkan.weight_blocks import blocks_of

# Ids of native/gpu/primitives/activations.slang, in order; "clamped" and "clipped" are for gates only.
_ACTIVATIONS = (
    *("silu", "gelu", "gelu_erf", "relu", "relu2", "sigmoid", "softplus", "tanh", "clamped", "gelu_quick", "exp"),
    *("clipped", "root"),
)
_MAX_STREAMS = 16
_POOLS = ("mean", "first", "last")
_THREADS = 64
_MAX_ROWS = 65535  # groups along a grid axis: Vulkan's guaranteed minimum
_NONE = Address(0)


def activation(name: str) -> int:
    """Return the id of an activation in the kernels."""
    if name not in _ACTIVATIONS:
        raise UnsupportedError(f"Vulkan and Metal do not support the activation {name}")
    return _ACTIVATIONS.index(name)


def elements(
    e: Emitter, kernel: str, kind: int, width: int, *args: Argument, g: float = 0.0, more: Address = _NONE
) -> None:
    """Launch an element-wise kernel. `args`: a, b, y, width, kind, three integers and a float."""
    e.launch(kernel, (-(-width // _THREADS), GridRows(kind)), _THREADS, *args, float(g), more, kind=kind)


def _elements(
    e: Emitter,
    step: Step,
    b: Address = _NONE,
    i: int = 0,
    j: int = 0,
    k: int = 0,
    f: float = 0.0,
    g: float = 0.0,
    more: Address = _NONE,
    kernel: str = "",
) -> None:
    """Launch the element-wise kernel of a step. `kernel` defaults to the name of the op."""
    value = step.output
    width, kind = e.width(value), e.kind(value)
    a = e.value(step.inputs[0])
    numbers = (width, kind, i, j, k, float(f))
    elements(e, kernel or step.op, kind, width, a, b, e.value(value), *numbers, g=g, more=more)


@emits("embed")
def _embed(e: Emitter, step: Step) -> None:
    _table(e, step, _NONE)


@emits("embed_position")
def _embed_position(e: Emitter, step: Step) -> None:
    _table(e, step, e.value(step.inputs[0]))


def _table(e: Emitter, step: Step, x: Address) -> None:
    """Look up table rows by token, or by position if they are added to x."""
    table = blocks_of(e, step.weights[0])
    width, kind = e.width(step.output), e.kind(step.output)
    args = (table.address, table.points, x, e.value(step.output), width, table.stride, kind, step.weights[0].shape[0])
    grid = (-(-width // _THREADS), GridRows(kind))
    e.launch(f"embed_{table.name}", grid, _THREADS, *args, _NONE, 1, kind=kind)


@emits("ngrams")
def _ngrams(e: Emitter, step: Step) -> None:
    """Look up the table rows of hashed n-grams, concatenated."""
    table, columns = blocks_of(e, step.weights[0]), step.weights[0].shape[1]
    numbers = [np.array(step.text(name).split(), np.uint64) for name in ("factors", "sizes", "firsts")]
    n = len(numbers[1])
    if e.max_rows * n > _MAX_ROWS:
        raise UnsupportedError(f"Vulkan and Metal have no {n} runs of tokens for batches of {e.max_rows} rows")
    ids = e.scratch("rows of runs", 4 * e.max_rows * n)
    packed = [e.array(f"hashes {x.tolist()}", x.nbytes, partial(np.array, x)) for x in numbers]
    more = (step.integer("entry"), step.integer("end"), len(numbers[0]) - 1, n)
    e.launch("ngrams", (GridRows(0, per=_THREADS),), _THREADS, ids, *packed, *more)
    args = (table.address, table.points, _NONE, e.value(step.output), columns, table.stride, 0, 0)
    e.launch(f"embed_{table.name}", (-(-columns // _THREADS), GridRows(0, times=n)), _THREADS, *args, ids, n)


@emits("hyper_connections")
def _hyper_connections(e: Emitter, step: Step) -> None:
    x, kind = step.inputs[0], e.kind(step.output)
    scale, base = (e.vector(weight) for weight in step.weights)
    numbers = (e.width(x), kind, step.integer("streams"), step.integer("iterations"), step.number("eps"))
    if step.integer("streams") > _MAX_STREAMS:
        raise UnsupportedError(f"Vulkan and Metal do not support more than {_MAX_STREAMS} streams")
    e.launch(
        "hyper_connections",
        (GridRows(kind),),
        _THREADS,
        e.value(x),
        scale,
        base,
        e.value(step.output),
        *numbers,
        kind=kind,
    )


@emits("add")
def _add(e: Emitter, step: Step) -> None:
    _elements(e, step, e.value(step.inputs[1]))


@emits("scale")
def _scale(e: Emitter, step: Step) -> None:
    _elements(e, step, f=step.number("factor"))


@emits("softcap")
def _softcap(e: Emitter, step: Step) -> None:
    _elements(e, step, f=step.number("cap"))


@emits("unary")
def _unary(e: Emitter, step: Step) -> None:
    _elements(e, step, i=activation(step.text("kind")))


@emits("glu")
def _glu(e: Emitter, step: Step) -> None:
    _elements(e, step, e.value(step.inputs[1]), i=activation(step.text("act")), f=step.number("limit"))


@emits("mul")
def _mul(e: Emitter, step: Step) -> None:
    _elements(e, step, e.value(step.inputs[1]), i=e.width(step.inputs[0]) // e.width(step.inputs[1]))


@emits("mul_weight")
def _mul_weight(e: Emitter, step: Step) -> None:
    _elements(e, step, e.vector(step.weights[0]), i=step.weights[0].shape[0], j=max(1, step.integer("run")))


@emits("add_weight")
def _add_weight(e: Emitter, step: Step) -> None:
    _elements(e, step, e.vector(step.weights[0]), i=step.weights[0].shape[0])


@emits("slice")
def _slice(e: Emitter, step: Step) -> None:
    width, first = e.width(step.inputs[0]), step.integer("first")
    _elements(e, step, i=width, j=width // step.integer("groups"), k=first, f=step.integer("last") - first)


@emits("concat")
def _concat(e: Emitter, step: Step) -> None:
    heads, is_shared = step.integer("heads"), step.integer("shared")
    n_a, n_b = (e.width(value) for value in step.inputs)
    _elements(e, step, e.value(step.inputs[1]), i=n_a // heads, j=n_b if is_shared else n_b // heads, k=is_shared)


@emits("rope")
def _rope(e: Emitter, step: Step) -> None:
    rope = step.rope()
    assert rope is not None
    # n_rot is even; n_rot - 1 encodes adjacent pairs.
    rotated = rope.n_rot - int(rope.style == "adjacent")
    _elements(e, step, i=rope.head_dim, j=rotated, k=e.column(step))


@emits("output_rows")
def _output_rows(e: Emitter, step: Step) -> None:
    _elements(e, step)


@emits("add_lora")
def _add_lora(e: Emitter, step: Step) -> None:
    _elements(e, step, e.value(step.inputs[1]), i=step.integer("adapter"), f=step.number("factor"))


@emits("clamp")
def _clamp(e: Emitter, step: Step) -> None:
    _elements(e, step, f=step.number("limit"))


@emits("clip")
def _clip(e: Emitter, step: Step) -> None:
    _elements(e, step, f=step.number("low"), g=step.number("high"))


@emits("xielu")
def _xielu(e: Emitter, step: Step) -> None:
    numbers = [step.number(name) for name in ("alpha_p", "alpha_n", "beta", "eps")]
    _elements(e, step, e.array(f"xielu {numbers}", 16, lambda: np.array(numbers, np.float32)))


@emits("lerp")
def _lerp(e: Emitter, step: Step) -> None:
    a, b = step.inputs
    _elements(e, step, e.value(b), i=e.width(a), more=e.vector(step.weights[0]))


@emits("mix_streams")
def _mix_streams(e: Emitter, step: Step) -> None:
    x, coefs = step.inputs
    streams = step.integer("streams")
    _elements(e, step, e.value(coefs), i=streams, j=e.width(x) // streams, k=e.width(coefs), f=step.number("plus"))


@emits("embed_token_type")
def _embed_token_type(e: Emitter, step: Step) -> None:
    _elements(e, step, e.vector(step.weights[0]), i=step.integer("separator"))


@emits("pool")
def _pool(e: Emitter, step: Step) -> None:
    _elements(e, step, i=_POOLS.index(step.text("kind")))


def norm(
    e: Emitter,
    kernel: str,
    kind: int,
    x: Address,
    y: Address,
    width: int,
    n: int,
    number: float,
    weight: Address = _NONE,
    bias: Address = _NONE,
    apart: bool = False,
) -> None:
    """Launch a norm kernel over groups of n columns in rows of `width`. `number` is a parameter such as eps."""
    args = (x, weight, bias, y, kind, n, width, int(apart), float(number))
    e.launch(kernel, (GridRows(kind), width // n), _THREADS, *args, kind=kind)


def _norm(e: Emitter, step: Step, n: int, number: float, *weights: Address, apart: bool = False) -> None:
    x, value = step.inputs[0], step.output
    weight, bias = (*weights, _NONE, _NONE)[:2]
    norm(e, step.op, e.kind(value), e.value(x), e.value(value), e.width(x), n, number, weight, bias, apart)


@emits("rms_norm")
def _rms_norm(e: Emitter, step: Step) -> None:
    n = step.weights[0].shape[0] if step.weights else step.integer("group")
    _norm(e, step, n, step.number("eps"), *map(e.vector, step.weights))


@emits("hidden")
def _hidden(e: Emitter, step: Step) -> None:
    n = e.width(step.output)
    weight = e.vector(step.weights[0]) if step.weights else _NONE
    norm(e, "rms_norm", 0, _NONE, e.value(step.output), n, n, step.number("eps"), weight)


@emits("layer_norm")
def _layer_norm(e: Emitter, step: Step) -> None:
    n = step.integer("group")
    apart = bool(step.weights) and math.prod(step.weights[0].shape) > n
    _norm(e, step, n, step.number("eps"), *map(e.vector, step.weights), apart=apart)


@emits("gaussian_topk")
def _gaussian_topk(e: Emitter, step: Step) -> None:
    _norm(e, step, e.width(step.output), step.number("deviations"))


@emits("match_rms")
def _match_rms(e: Emitter, step: Step) -> None:
    like = step.inputs[1]
    _norm(e, step, e.width(like), step.number("least"), e.value(like))


@emits("vecdot")
def _vecdot(e: Emitter, step: Step) -> None:
    _norm(e, step, step.integer("group"), 0.0, e.value(step.inputs[1]))


@emits("input")
def _input(e: Emitter, step: Step) -> None:
    if e.max_rows > _MAX_ROWS:
        raise UnsupportedError(f"Vulkan and Metal have no towers of {e.max_rows} rows at once: {_MAX_ROWS} at most")
    width, kind = e.width(step.output), e.kind(step.output)
    elements(e, "input", kind, width, _NONE, _NONE, e.value(step.output), width, kind, 0, 0, 0, 0.0)


@emits("embedding_bag")
def _embedding_bag(e: Emitter, step: Step) -> None:
    _elements(e, step, e.vector(step.weights[0]), i=step.integer("first"), j=step.integer("taps"))


@emits("merge_patches")
def _merge_patches(e: Emitter, step: Step) -> None:
    _elements(e, step, i=step.integer("count"), kernel=f"merge_patches_{step.text('kind')}")


@emits("conv1d")
def _conv1d(e: Emitter, step: Step) -> None:
    filters, bias = [*(e.vector(weight) for weight in step.weights), _NONE][:2]
    numbers = (step.integer("kernel"), step.integer("before"), int(step.text("act") == "silu"))
    _elements(e, step, filters, *numbers, more=bias)


@emits("gather_conv1d")
def _gather_conv1d(e: Emitter, step: Step) -> None:
    _elements(e, step, e.vector(step.weights[0]), i=step.integer("first"), j=step.integer("taps"))


@emits("scatter_rows")
def _scatter_rows(e: Emitter, step: Step) -> None:
    _elements(e, step, i=step.integer("part"), j=step.integer("adds"))
