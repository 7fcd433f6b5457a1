"""Attention: keys and values put into the cache, and softmax over it: native/gpu/attention."""

from __future__ import annotations

from woolly.errors import UnsupportedError
from woolly.plan import Step
from woolly.runtime.batch import Batch
from woolly.runtime.gpu.emit import Emitter, GridRows
from woolly.runtime.gpu.state import room
from woolly.runtime.gpu.stores import store_arguments
from woolly.runtime.vulkan.archive import open_archive
from woolly.runtime.vulkan.emitters import emits

__all__ = ["is_far"]

_MASKS = ("", "all", "chunked")
_COLUMNS = (128, 256, 640)  # of V that kernels take
# Positions of a split, groups that share the splits of a row (as in attend.slang), and splits that they may have.
_SPLIT, _SHARERS, _MOST_SPLITS = 128, 32, 256


def is_far(batch: Batch) -> bool:
    """Whether the batch is one row with more positions before it than are computed side by side."""
    return batch.n_rows == 1 and int(batch.positions[0]) >= _SPLIT * (_MOST_SPLITS - 1)


@emits("store")
def _store(e: Emitter, step: Step) -> None:
    if f"store_{e.kv_type}" not in open_archive().names():
        raise UnsupportedError(f"the vulkan backend has no cache of {e.kv_type}")
    heads = e.width(step.inputs[0]) // step.integer("head_dim") + e.plan.paged[step.integer("entry")].heads
    e.launch(f"store_{e.kv_type}", (GridRows(0), heads), 64, *store_arguments(e, step))


@emits("attend")
def _attend(e: Emitter, step: Step) -> None:
    entry = e.plan.paged[step.integer("entry")]
    for name in ("temper", "alibi"):
        if step.number(name):
            raise UnsupportedError(f"the vulkan backend has no attention with {name}")
    for role in ("sinks", "distances"):
        if step.by_role(role):
            raise UnsupportedError(f"the vulkan backend has no attention with {role}")
    x = step.inputs[0]
    heads = e.width(x) // entry.k_dim
    v_dim = e.width(step.output) // heads
    columns = next(n for n in _COLUMNS if v_dim <= n)
    parts = e.scratch("attention parts", 4 * heads * _MOST_SPLITS * (v_dim + 2))
    args = (
        *(e.value(x), e.value(step.output), parts, step.integer("entry"), heads, entry.heads, entry.k_dim, v_dim),
        *(room(entry.k_dim, e.kv_type), room(v_dim, e.kv_type), int(entry.v_in_k)),
        *(_MASKS.index(step.text("mask")), step.integer("window"), _MOST_SPLITS),
        *(step.number("scale"), step.number("softcap")),
    )
    kind = f"{e.kv_type}_{columns}"
    # The splits of one row are computed side by side; more than memory was set aside for, one after another.
    e.launch(f"attend_parts_{kind}", (heads, 1, _SHARERS), 128, *args, most=1, far=False)
    e.launch(f"attend_merge_{kind}", (heads, 1), 128, *args, most=1, far=False)
    e.launch(f"attend_{kind}", (heads, 1), 128, *args, most=1, far=True)
    e.launch(f"attend_{kind}", (heads, GridRows(0)), 128, *args, least=2)
