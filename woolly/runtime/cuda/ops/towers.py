"""Emitters of ops of vision and audio encoders, and of injected embeddings: native/cuda/rows/towers.cu."""

from __future__ import annotations

from woolly.plan import Step
from woolly.runtime.cuda.emitters import emits
from woolly.runtime.cuda.ops.rows import threads_for
from woolly.runtime.gpu.device import Address, Argument
from woolly.runtime.gpu.emitter import Emitter, GridRows


def _elements(e: Emitter, kernel: str, step: Step, *args: Argument, weights: tuple[Address, ...] = ()) -> None:
    """Launch an element-wise kernel: inputs, weights, output, width, then `args`."""
    value, width = step.output, e.width(step.output)
    threads, kind = threads_for(width), e.kind(value)
    grid = (GridRows(kind), -(-width // (4 * threads)))
    inputs = [e.value(v) for v in step.inputs]
    e.launch(kernel, grid, threads, *inputs, *weights, e.value(value), width, *args, kind=kind)


@emits("input")
def _input(e: Emitter, step: Step) -> None:
    _elements(e, "input", step)


@emits("embedding_bag")
def _embedding_bag(e: Emitter, step: Step) -> None:
    _elements(
        e, "embedding_bag", step, step.integer("first"), step.integer("taps"), weights=(e.vector(step.weights[0]),)
    )


@emits("merge_patches")
def _merge_patches(e: Emitter, step: Step) -> None:
    _elements(e, f"merge_patches_{step.text('kind')}", step, step.integer("count"))


@emits("conv1d")
def _conv1d(e: Emitter, step: Step) -> None:
    filters, *bias = (e.vector(weight) for weight in step.weights)
    own = (filters, bias[0] if bias else Address(0))
    _elements(
        e,
        "conv1d",
        step,
        *(step.integer("kernel"), step.integer("before"), int(step.text("act") == "silu")),
        weights=own,
    )


@emits("cumulative_norm")
def _cumulative_norm(e: Emitter, step: Step) -> None:
    value, (weight,), width = step.output, step.weights, e.width(step.output)
    args = (e.value(step.inputs[0]), e.vector(weight), e.value(value), width, weight.shape[0], step.number("eps"))
    e.launch("cumulative_norm", (GridRows(e.kind(value)),), threads_for(width), *args)


@emits("scatter_rows")
def _scatter_rows(e: Emitter, step: Step) -> None:
    _elements(e, "scatter_rows", step, step.integer("part"), step.integer("adds"))
