"""Emitters of ops of rows and elements: native/gpu/rows and native/gpu/weights/embed.slang."""

from __future__ import annotations

from woolly.errors import UnsupportedError
from woolly.plan import Step
from woolly.runtime.gpu.device import Address, Argument
from woolly.runtime.gpu.emit import Emitter, GridRows
from woolly.runtime.vulkan.blocks import blocks_of
from woolly.runtime.vulkan.emitters import emits

__all__ = ["ACTIVATIONS", "GATES", "elements"]

# Numbers of native/gpu/primitives/activations.slang, in order; "clamped" is a gate alone.
ACTIVATIONS = ("silu", "gelu", "gelu_erf", "relu", "relu2", "sigmoid", "clamped")
GATES = ("silu", "gelu", "gelu_erf", "relu", "clamped")
_THREADS = 64
_NONE = Address(0)


def elements(e: Emitter, kernel: str, kind: int, width: int, *args: Argument) -> None:
    """A kernel over elements: a, b, y, the width and kind of y, three whole numbers and one that is not."""
    e.launch(kernel, (-(-width // _THREADS), GridRows(kind)), _THREADS, *args, kind=kind)


def _elements(e: Emitter, step: Step, b: Address = _NONE, i: int = 0, j: int = 0, k: int = 0, f: float = 0.0) -> None:
    """The op of the step over the elements of its value."""
    value = step.output
    width, kind = e.width(value), e.kind(value)
    a = e.value(step.inputs[0])
    elements(e, step.op, kind, width, a, b, e.value(value), width, kind, i, j, k, float(f))


@emits("embed")
def _embed(e: Emitter, step: Step) -> None:
    table = blocks_of(e, step.weights[0])
    width = e.width(step.output)
    args = (table.address, table.points, e.value(step.output), width, table.stride, 0)
    e.launch(f"embed_{table.name}", (-(-width // _THREADS), GridRows(0)), _THREADS, *args)


@emits("add")
def _add(e: Emitter, step: Step) -> None:
    _elements(e, step, e.value(step.inputs[1]))


@emits("scale")
def _scale(e: Emitter, step: Step) -> None:
    _elements(e, step, f=step.number("factor"))


@emits("softcap")
def _softcap(e: Emitter, step: Step) -> None:
    _elements(e, step, f=step.number("cap"))


@emits("act")
def _act(e: Emitter, step: Step) -> None:
    name = step.text("kind")
    if name not in ACTIVATIONS[:-1]:
        raise UnsupportedError(f"the vulkan backend has no activation {name}")
    _elements(e, step, i=ACTIVATIONS.index(name))


@emits("glu")
def _glu(e: Emitter, step: Step) -> None:
    name = step.text("act")
    if name not in GATES:
        raise UnsupportedError(f"the vulkan backend has no gate {name}")
    _elements(e, step, e.value(step.inputs[1]), i=ACTIVATIONS.index(name), f=step.number("limit"))


@emits("mul")
def _mul(e: Emitter, step: Step) -> None:
    _elements(e, step, e.value(step.inputs[1]), i=e.width(step.inputs[0]) // e.width(step.inputs[1]))


@emits("gain")
def _gain(e: Emitter, step: Step) -> None:
    _elements(e, step, e.vector(step.weights[0]), i=step.weights[0].shape[0], j=max(1, step.integer("run")))


@emits("shift")
def _shift(e: Emitter, step: Step) -> None:
    _elements(e, step, e.vector(step.weights[0]), i=step.weights[0].shape[0])


@emits("columns")
def _columns(e: Emitter, step: Step) -> None:
    width, first = e.width(step.inputs[0]), step.integer("first")
    _elements(e, step, i=width, j=width // step.integer("groups"), k=first, f=step.integer("last") - first)


@emits("join")
def _join(e: Emitter, step: Step) -> None:
    heads, is_shared = step.integer("heads"), step.integer("shared")
    n_a, n_b = (e.width(value) for value in step.inputs)
    _elements(e, step, e.value(step.inputs[1]), i=n_a // heads, j=n_b if is_shared else n_b // heads, k=is_shared)


@emits("rope")
def _rope(e: Emitter, step: Step) -> None:
    rope = step.rope()
    assert rope is not None
    # n_rot is even: one less says that pairs are side by side.
    turned = rope.n_rot - int(rope.style == "adjacent")
    _elements(e, step, i=rope.head_dim, j=turned, k=e.column(step))


@emits("output_rows")
def _output_rows(e: Emitter, step: Step) -> None:
    _elements(e, step)


@emits("adapt")
def _adapt(e: Emitter, step: Step) -> None:
    _elements(e, step, e.value(step.inputs[1]), i=step.integer("adapter"), f=step.number("factor"))


@emits("rms_norm")
def _rms_norm(e: Emitter, step: Step) -> None:
    n = step.weights[0].shape[0] if step.weights else step.integer("group")
    weight = e.vector(step.weights[0]) if step.weights else _NONE
    value, width = step.output, e.width(step.output)
    kind = e.kind(value)
    args = (e.value(step.inputs[0]), weight, e.value(value), kind, n, width, step.number("eps"))
    e.launch("rms_norm", (GridRows(kind), width // n), _THREADS, *args, kind=kind)


@emits("hidden")
def _hidden(e: Emitter, step: Step) -> None:
    n = e.width(step.output)
    args = (_NONE, e.vector(step.weights[0]), e.value(step.output), 0, n, n, step.number("eps"))
    e.launch("rms_norm", (GridRows(0), 1), _THREADS, *args)
