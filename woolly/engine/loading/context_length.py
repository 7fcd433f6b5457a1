"""Context length of a model: maximum number of prompt and answer tokens."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from woolly import _native
from woolly.errors import RequestError
from woolly.gguf import Keys
from woolly.gguf.overlay import Overlay
from woolly.machine.memory import available_memory

if TYPE_CHECKING:
    from woolly.gguf import GGUFFile
    from woolly.plan import Plan

# The default is the model's context length, but the KV cache takes at most this share of the memory left by the
# weights. Agents start with 2,000 to 19,000 tokens, so a fixed default of 8,192 would reject most of them.
_CONTEXT_SHARE = 0.25
MIN_CTX = 8192  # minimum default if the model was trained for more, regardless of memory
# Upper limit for recurrent models, whose state does not grow with the context.
MAX_CTX = 1 << 20
_CTX_STEP = 4096  # the default context is a multiple of this number, so that it is the same after a restart


def context_limit(file: GGUFFile, plan: Plan) -> int:
    """Return the maximum context length that the model was trained for and that is supported."""
    trained = _trained(file, plan)
    return trained if plan.positions is None else min(trained, plan.positions)


def _trained(file: GGUFFile, plan: Plan) -> int:
    keys = Keys(file.metadata, plan.architecture)
    trained = keys.positive("context_length")
    if plan.has_source:  # encoder rows and decoder tokens share the context
        trained += keys.positive("encoder.context_length", trained)
    if not isinstance(file.metadata, Overlay) or keys.string("rope.scaling.type", "linear") == "none":
        return trained
    # A file with RoPE scaling declares the scaled length; scaling set by the user extends the length.
    factor = keys.number("rope.scaling.factor", 1.0)
    return max(trained, int(factor * keys.positive("rope.scaling.original_context_length", trained)))


def affordable_ctx(limit: int, token_bytes: float, weight_bytes: int, memory: int | None = None) -> int:
    """Return the default context length: `limit`, bounded by the memory for the KV cache.

    `memory` is the device memory left by the weights. With None, weights and cache share system memory.
    """
    memory = int(_CONTEXT_SHARE * (max(0, available_memory() - weight_bytes) if memory is None else memory))
    n_tokens = int(memory / token_bytes) if token_bytes else MAX_CTX
    return min(limit, max(MIN_CTX, n_tokens // _CTX_STEP * _CTX_STEP))


def possible_ctx(
    file: GGUFFile, plan: Plan, ctx: int | None, kv_type: str | None = None, memory: int | None = None
) -> int:
    """Return `ctx`, bounded by the positions that the model supports; None selects the default for the free memory."""
    if ctx is None:
        token_bytes = plan.growth_bytes(_native.kv_value_bytes(kv_type or "f16"))
        return affordable_ctx(context_limit(file, plan), token_bytes, file.n_bytes, memory)
    check_ctx(ctx)
    return min([ctx, *(step.weights[0].shape[0] for step in plan.steps if step.op == "embed_position")])


def default_ctx(
    file: GGUFFile, plan: Plan, ctx: int | None, kv_type: str | None = None, memory: int | None = None
) -> int:
    """Return `possible_ctx`. Warn if the model was trained for less or supports fewer positions."""
    possible, name = possible_ctx(file, plan, ctx, kv_type, memory), file.path.stem
    if ctx is not None and possible < ctx:
        warnings.warn(f"ctx reduced from {ctx} to {possible}: {name} has no positions beyond it", stacklevel=3)
    elif ctx is None and possible == plan.positions and possible < (trained := _trained(file, plan)):
        warnings.warn(
            f"ctx reduced from {trained} to {possible}: longer contexts of {name} are not supported yet",
            stacklevel=3,
        )
    elif possible > (limit := context_limit(file, plan)):
        warnings.warn(
            f"ctx is {possible}, but {name} was trained for {limit} tokens: answers get worse beyond that", stacklevel=3
        )
    return possible


def check_ctx(ctx: int | None) -> None:
    """Raise RequestError unless the context length is None or an integer of at least 1."""
    if ctx is not None and (isinstance(ctx, bool) or not isinstance(ctx, int) or ctx < 1):
        raise RequestError(f"ctx is {ctx!r}; expected an integer of at least 1", field="ctx")
