"""Recurrent ops over slots. Kernels: native/gpu/scans."""

from __future__ import annotations

import numpy as np

from woolly.errors import UnsupportedError
from woolly.plan import Step
from woolly.runtime.f64_math import fades_of
from woolly.runtime.gpu.device import Address, Argument
from woolly.runtime.gpu.emitter import Emitter, GridRows
from woolly.runtime.vulkan.emitters import emits

# As in native/gpu/scans: threads (one column each), maximum keys of a state, sequences with separate groups.
_THREADS, _MAX_KEYS, _N_SEQUENCES = 64, 512, 16
_NONE = Address(0)


def _columns(e: Emitter, kernel: str, n_columns: int, heads: int, *args: Argument) -> None:
    """Launch a scan kernel, in which each thread processes a column of the state. One row is always one sequence."""
    for n, least, most in ((1, 0, 1), (_N_SEQUENCES, 2, 1 << 30)):
        e.launch(kernel, (-(-n_columns // _THREADS), heads, n), _THREADS, *args, least=least, most=most)


def _scan(
    e: Emitter,
    step: Step,
    v: int,
    given: list[Address],
    heads: int,
    n_keys: int,
    heads_k: int = 1,
    is_mod: bool = False,
    is_wide: bool = False,
    eps: float = 0.0,
) -> None:
    """Launch a scan with a state of [n_keys][columns of v] per head. `given`: inputs besides v, as in scan.slang."""
    if n_keys > _MAX_KEYS:
        raise UnsupportedError(f"Vulkan and Metal have no {step.op} of {n_keys} keys: up to {_MAX_KEYS}")
    n_columns = e.width(v) // heads
    n, one = np.float32(n_keys), np.float32(1)
    args = (
        *(e.value(v), e.value(step.output), *(*given, *(_NONE,) * 5)[:5]),
        *(step.integer("entry"), heads, n_keys, n_columns, heads_k, int(is_mod), int(is_wide)),
        *(float(np.float32(eps) / n), float(one / np.sqrt(n)), float(one / n)),
    )
    _columns(e, step.op, n_columns, heads, *args)


@emits("delta_net")
def _delta_net(e: Emitter, step: Step) -> None:
    q, k, v, decay, beta = step.inputs
    heads_k, heads = step.integer("heads_k"), step.integer("heads_v")
    is_mod, is_wide = step.text("order") == "mod", e.width(decay) != heads
    given = [e.value(one) for one in (q, k, decay, beta)]
    _scan(e, step, v, given, heads, e.width(k) // heads_k, heads_k, is_mod, is_wide, step.number("eps"))


@emits("wkv7")
def _wkv7(e: Emitter, step: Step) -> None:
    r, w, k, v, a, b = step.inputs
    head = step.integer("head")
    _scan(e, step, v, [e.value(one) for one in (r, w, k, a, b)], e.width(v) // head, head)


@emits("lightning_attention")
def _lightning_attention(e: Emitter, step: Step) -> None:
    q, k, v = step.inputs
    head, slope = step.integer("head"), step.number("slope")
    heads = e.width(v) // head
    fades = e.array(f"fades {slope} {heads}", 4 * heads, lambda: fades_of(slope, heads))
    given = [e.value(q), e.value(k), fades]
    _scan(e, step, v, given, heads, head)


@emits("scan_mamba2")
def _scan_mamba2(e: Emitter, step: Step) -> None:
    x, dt, b, c = step.inputs
    heads, groups = e.width(dt), step.integer("groups")
    given = [*(e.value(one) for one in (dt, b, c)), *(e.vector(w) for w in step.weights)]
    _scan(e, step, x, given, heads, e.width(b) // groups, groups)


@emits("scan_mamba")
def _scan_mamba(e: Emitter, step: Step) -> None:
    inputs, weights = [e.value(one) for one in step.inputs], [e.vector(w) for w in step.weights]
    width, n = e.width(step.output), e.width(step.inputs[2])
    _columns(e, step.op, width, 1, *inputs, *weights, e.value(step.output), step.integer("entry"), width, n)


@emits("causal_conv1d")
def _causal_conv1d(e: Emitter, step: Step) -> None:
    weight, bias = [*(e.vector(w) for w in step.weights), _NONE][:2]
    args = (step.integer("entry"), step.integer("kernel"), int(bool(step.text("act"))), step.integer("gap") + 1)
    _each(e, step, weight, bias, args=args)


@emits("token_shift")
def _token_shift(e: Emitter, step: Step) -> None:
    _each(e, step, args=(step.integer("entry"),))


@emits("compress")
def _compress(e: Emitter, step: Step) -> None:
    kv, gate = step.inputs
    width, out = e.width(kv), e.width(step.output)
    args = (e.value(kv), e.value(gate), e.vector(step.weights[0]), e.value(step.output))
    grid = (-(-width // _THREADS), GridRows(0))
    e.launch("compress", grid, _THREADS, *args, width, out, step.integer("entry"), step.integer("every"))


def _each(e: Emitter, step: Step, *weights: Address, args: tuple[Argument, ...]) -> None:
    """Launch a kernel with a thread per element. Arguments: x, weights, y, width, `args`."""
    width = e.width(step.output)
    grid = (-(-width // _THREADS), GridRows(0))
    e.launch(step.op, grid, _THREADS, e.value(step.inputs[0]), *weights, e.value(step.output), width, *args)
