"""Emitters of recurrent ops: native/cuda/rows/scans.cu."""

from __future__ import annotations

from woolly.errors import UnsupportedError
from woolly.plan import Step
from woolly.runtime.cuda.emitters import emits
from woolly.runtime.cuda.ops.rows import threads_for
from woolly.runtime.f64_math import fades_of
from woolly.runtime.gpu.device import Address, Argument
from woolly.runtime.gpu.emitter import Emitter, GridRows

# As in native/cuda/rows/scans.cu.
_LANES, _COLUMNS = 8, 16
_EACH = (2, 4, 8, 16, 32)  # keys per lane
_LONG = ("delta_net", "wkv7")  # ops without the largest of these sizes
_N_SEQUENCES = 16  # sequences with separate blocks


def _scan(e: Emitter, step: Step, n_keys: int, n_columns: int, heads: int, *args: Argument) -> None:
    """Launch a scan with a state [n_keys][n_columns] per head: inputs, weights, output, entry, then `args`."""
    most = _LANES * (_EACH[-2] if step.op in _LONG else _EACH[-1])
    if n_keys > most:
        raise UnsupportedError(f"{step.op} has states of {n_keys} keys; the cuda backend supports up to {most}")
    each = next(each for each in _EACH if _LANES * each >= n_keys)
    inputs = [e.value(v) for v in step.inputs]
    weights = [e.vector(w.name) for w in step.weights]
    if step.op == "lightning_attention":
        weights = [_fades(e, step, heads)]
    given = (*inputs, *weights, e.value(step.output), step.integer("entry"), *args)
    name, columns, threads = f"{step.op}_{each}", -(-n_columns // _COLUMNS), _LANES * _COLUMNS
    # One row is one sequence. With more rows, the number of sequences is unknown when launches are recorded, and empty
    # blocks cost time.
    e.launch(name, (columns, heads, 1), threads, *given, most=1)
    e.launch(name, (columns, heads, _N_SEQUENCES), threads, *given, least=2)


def _fades(e: Emitter, step: Step, heads: int) -> Address:
    slope = step.number("slope")
    return e.array(f"fades {slope} {heads}", 4 * heads, lambda: fades_of(slope, heads))


@emits("delta_net")
def _delta_net(e: Emitter, step: Step) -> None:
    heads_k, heads_v = step.integer("heads_k"), step.integer("heads_v")
    head, head_v = e.width(step.inputs[1]) // heads_k, e.width(step.inputs[2]) // heads_v
    is_mod, is_wide = int(step.text("order") == "mod"), int(e.width(step.inputs[3]) != heads_v)
    _scan(e, step, head, head_v, heads_v, heads_k, heads_v, head, head_v, is_mod, is_wide, step.number("eps"))


@emits("scan_mamba")
def _scan_mamba(e: Emitter, step: Step) -> None:
    width, n = e.width(step.output), e.width(step.inputs[2])
    _scan(e, step, n, width, 1, width, n)


@emits("scan_mamba2")
def _scan_mamba2(e: Emitter, step: Step) -> None:
    heads, groups = e.width(step.inputs[1]), step.integer("groups")
    n, head = e.width(step.inputs[2]) // groups, e.width(step.output) // heads
    _scan(e, step, n, head, heads, heads, groups, n, head)


@emits("wkv7", "lightning_attention")
def _heads(e: Emitter, step: Step) -> None:
    head = step.integer("head")
    heads = e.width(step.output) // head
    _scan(e, step, head, head, heads, heads, head)


@emits("causal_conv1d")
def _causal_conv1d(e: Emitter, step: Step) -> None:
    if step.integer("gap"):
        raise UnsupportedError("the cuda backend does not support dilated convolutions")
    width = e.width(step.output)
    weight, bias = [*(e.vector(w.name) for w in step.weights), Address(0)][:2]
    threads = threads_for(width)
    grid = (GridRows(0), -(-width // threads))
    args: list[Argument] = [e.value(step.inputs[0]), weight, bias, e.value(step.output), width]
    e.launch(
        "causal_conv1d",
        grid,
        threads,
        *args,
        step.integer("entry"),
        step.integer("kernel"),
        int(bool(step.text("act"))),
    )


@emits("token_shift")
def _token_shift(e: Emitter, step: Step) -> None:
    width = e.width(step.output)
    threads = threads_for(width)
    x, y = e.value(step.inputs[0]), e.value(step.output)
    e.launch("token_shift", (GridRows(0), -(-width // threads)), threads, x, y, width, step.integer("entry"))
