"""Emitters of ops of towers, and of rows in place of tokens: native/cuda/rows/towers.cu."""

from __future__ import annotations

from woolly.plan import Step
from woolly.runtime.cuda.emitters import emits
from woolly.runtime.cuda.ops.rows import threads_for
from woolly.runtime.gpu.device import Address, Argument
from woolly.runtime.gpu.emit import Emitter, GridRows


def _elements(e: Emitter, kernel: str, step: Step, *args: Argument, weights: tuple[Address, ...] = ()) -> None:
    """A kernel over the elements of the step's value: inputs, weights, output, width, then `args`."""
    value, width = step.output, e.width(step.output)
    threads, kind = threads_for(width), e.kind(value)
    grid = (GridRows(kind), -(-width // (4 * threads)))
    inputs = [e.value(v) for v in step.inputs]
    e.launch(kernel, grid, threads, *inputs, *weights, e.value(value), width, *args, kind=kind)


@emits("given")
def _given(e: Emitter, step: Step) -> None:
    _elements(e, "given", step)


@emits("blend")
def _blend(e: Emitter, step: Step) -> None:
    _elements(e, "blend", step, step.integer("first"), step.integer("taps"), weights=(e.vector(step.weights[0]),))


@emits("fold")
def _fold(e: Emitter, step: Step) -> None:
    _elements(e, f"fold_{step.text('kind')}", step, step.integer("count"))


@emits("conv_around")
def _conv_around(e: Emitter, step: Step) -> None:
    filters, *bias = (e.vector(weight) for weight in step.weights)
    own = (filters, bias[0] if bias else Address(0))
    _elements(
        e,
        "conv_around",
        step,
        *(step.integer("kernel"), step.integer("before"), int(step.text("act") == "silu")),
        weights=own,
    )


@emits("running_norm")
def _running_norm(e: Emitter, step: Step) -> None:
    value, (weight,), width = step.output, step.weights, e.width(step.output)
    args = (e.value(step.inputs[0]), e.vector(weight), e.value(value), width, weight.shape[0], step.number("eps"))
    e.launch("running_norm", (GridRows(e.kind(value)),), threads_for(width), *args)


@emits("place")
def _place(e: Emitter, step: Step) -> None:
    _elements(e, "place", step, step.integer("part"), step.integer("adds"))
