"""Attention emitters: store K and V in the cache, and compute softmax attention over it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from woolly.errors import UnsupportedError
from woolly.plan import Paged, Plan, Step
from woolly.runtime.batch import Batch
from woolly.runtime.cuda.emitters import emits
from woolly.runtime.f64_math import alibi_slopes_f64
from woolly.runtime.gpu.device import Address, Argument
from woolly.runtime.gpu.emitter import Emitter, GridRows
from woolly.runtime.gpu.state import room
from woolly.runtime.gpu.store_arguments import store_arguments
from woolly.runtime.options import KV_TYPES, kv_type_pair, kv_types_of
from woolly.runtime.reference.ops import distance_buckets

# Maximum memory for partial results of split-KV blocks (256 positions), which a separate kernel merges.
PARTIAL_BYTES = 64 << 20

# Maximum rows of a sequence for the decode kernels, and queries per block of the prefill kernel.
MAX_FEW_ROWS = 15
QUERIES = 128

# Context length from which blocks of a head exchange results through memory instead of a cluster.
FAR = 2048

_MAX_WARP_ROWS = 64  # maximum rows that use a separate warp for each head of q, k and v
_STREAMED = {"f16": 8, "q8_0": 3}  # minimum rows for which the decode kernels stream K and V through rings

# Head sizes with a WGMMA prefill kernel for Hopper.
_WIDE = {"f16": (64, 80, 96, 128), "q8_0": (64, 128)}

# More than 48 KB, so that the driver's limit is raised for kernels with additional static arrays, and all large kernels
# use the same carveout.
_MIN_SHARED_BYTES = (48 << 10) + 16

_FARTHEST = 128  # all distances from here on share a bucket
_ALL_ROWS = 1 << 30
_NONE = Address(0)
_MASKS = {"": 0, "all": 1, "chunked": 2, "block": 3, "causal": 4}


def joined(plan: Plan, kv_type: str) -> frozenset[int]:
    """Return the indices of `store` steps followed by their attention: for one row, a kernel computes both."""
    pairs = zip(plan.steps, plan.steps[1:], strict=False)
    return frozenset(i for i, (step, after) in enumerate(pairs) if _are_joined(step, after, kv_type))


def is_far(batch: Batch) -> bool:
    """True if the batch is one row with a long context, which uses separate launches."""
    return batch.n_rows == 1 and int(batch.positions[0]) >= FAR


def _are_joined(step: Step | None, after: Step | None, kv_type: str) -> bool:
    if step is None or after is None or (step.op, after.op) != ("store", "attend"):
        return False
    is_own = after.inputs[0] == step.output and after.integer("entry") == step.integer("entry")
    return is_own and kv_type in _STREAMED and len(step.inputs) == 3


def _is_streamed(e: Emitter, entry: Paged, group: int) -> bool:
    """True if a batch of few rows uses the kernel that streams groups of positions through shared memory."""
    return e.kv_type in _STREAMED and _prefill_bytes(entry, group, e.kv_type, e.device.shared_bytes) > 0


@emits("store")
def _store(e: Emitter, step: Step) -> None:
    if e.kv_type not in kv_types_of("cuda"):
        raise UnsupportedError(f"the cuda backend does not support kv_type {e.kv_type}")
    entry = e.plan.paged[step.integer("entry")]
    heads = e.width(step.inputs[0]) // step.integer("head_dim")
    arguments, n_heads = store_arguments(e, step), heads + entry.heads
    if step.output == step.inputs[0]:  # q is unchanged: no norm or rope
        arguments, n_heads = (*arguments[:7], 0, *arguments[8:]), entry.heads
    # One head per warp for few rows, five for many.
    few, many = ((GridRows(0), -(-n_heads // (4 * n))) for n in (1, 5))
    kernel, most = f"store_{_named(entry, e.kv_type)}", _MAX_WARP_ROWS
    if _are_joined(step, e.new_stream(1), e.kv_type) and _is_streamed(e, entry, heads // entry.heads):
        least = _STREAMED[e.kv_type]
        e.launch(kernel, few, 128, *arguments, most=1, early=True, other=1)
        e.launch(kernel, few, 128, *arguments, least=2, most=least - 1, early=True)
        e.launch(kernel, few, 128, *arguments, least=least, most=most, early=True, other=1, apart=True)
        e.launch(kernel, many, 128, *arguments, least=most + 1, early=True, other=1, apart=True)
    else:
        e.launch(kernel, few, 128, *arguments, most=most, early=True)
        e.launch(kernel, many, 128, *arguments, least=most + 1, early=True)


@emits("attend")
def _attend(e: Emitter, step: Step) -> None:
    entry = e.plan.paged[step.integer("entry")]
    own = _named(entry, e.kv_type)
    if own.endswith("q4"):
        _attend_hadamard(e, step, own)
        return
    part_bytes = 4 * (4 + -(-entry.v_dim // 4) * 4)
    n_partials = PARTIAL_BYTES // part_bytes
    partials = e.scratch("attention parts", n_partials * part_bytes)
    grid = 8 * e.device.n_processors
    if e.kv_type == "f32":  # f32 is not rounded, so tensor cores cannot be used
        arguments = _arguments(e, step, partials, n_partials, _ALL_ROWS, 0)
        e.launch("attend_f32", grid, 128, *arguments)
        e.launch("attend_merge", grid, 128, *arguments)
        return
    stages, shared = _few_bytes(entry, e.device.shared_bytes)
    group = e.width(step.inputs[0]) // entry.k_dim // entry.heads
    many = _prefill_bytes(entry, group, e.kv_type, e.device.shared_bytes)
    arguments = _arguments(e, step, partials, n_partials, MAX_FEW_ROWS if many else _ALL_ROWS, stages)
    if not many:
        columns = next(n for n in (64, 128, 256, 576) if entry.v_dim <= n)
        e.launch(f"attend_few_{own}_{columns}", grid, 128, *arguments, shared=shared, early=True)
        return
    columns = room(entry.k_dim, e.kv_type)
    tiles, least = GridRows(0, per=QUERIES // group), MAX_FEW_ROWS + 1
    # If a kernel fuses this step with the previous one, the other launches process the runs that it skips.
    store = (
        e.new_stream(-1) if _is_streamed(e, entry, group) and _are_joined(e.new_stream(-1), step, e.kv_type) else None
    )
    other = 0 if store is None else -1
    # WGMMA kernel: shared memory for queries, a ring of six, sums, alignment and barriers; for q8_0 also three raw
    # groups with the scales of each 16.
    if e.device.kernels_for == 90 and columns in _WIDE[e.kv_type]:
        shared = (QUERIES * 2 + 6 * 64 * 2) * -(-columns // 64) * 64 + QUERIES * 4 * columns + 2048
        shared += 0 if e.kv_type == "f16" else 3 * 64 * columns * 20 // 16
        kernel, threads = f"attend_prefill_wgmma_{e.kv_type}_{columns}", 384 if e.kv_type == "f16" else 512
        blocks: tuple[int | GridRows, ...] = (entry.heads, tiles)
    else:
        kernel, blocks, threads, shared = f"attend_prefill_{e.kv_type}_{columns}", (tiles, entry.heads), 256, many
    e.launch(kernel, blocks, threads, *arguments, shared=shared, least=least, early=True, other=other, apart=True)
    # A ring of three groups of 64 positions, two blocks per multiprocessor. One block with a complete unit of f16 K and
    # V has lower latency, but less bandwidth.
    n, kernel = e.device.n_processors, f"attend_stream_{e.kv_type}_{columns}"
    kept = KV_TYPES[e.kv_type]
    row = columns * int(kept.bits) // 8 if kept.block > 1 else 2 * columns + (0 if columns % 64 == 0 else 16)
    ring = max(16 * (2 * columns + 16) + 3 * 2 * 64 * row, _MIN_SHARED_BYTES)
    is_near = 0 < step.integer("window") <= FAR  # positions outside a window are masked
    least = _STREAMED[e.kv_type]
    if e.kv_type == "f16":
        few, units = f"attend_split_{e.kv_type}_{columns}", (16 + 2 * 256) * (2 * columns + 16)
        e.launch(few, n, 256, *arguments, shared=units, most=1, early=True, other=other)
        e.launch(few, n, 256, *arguments, shared=units, least=2, most=least - 1, early=True)
    else:
        e.launch(kernel, 2 * n, 128, *arguments, shared=ring, most=1, early=True, other=other)
        e.launch(kernel, 2 * n, 128, *arguments, shared=ring, least=2, most=least - 1, early=True)
    e.launch(kernel, 2 * n, 128, *arguments, shared=ring, least=least, early=True, other=other, apart=True)
    if store is None:
        return
    arguments = (e.value(store.inputs[0]), *arguments[1:], *_head_arguments(e, store))
    name, launch = f"{e.kv_type}_{columns}", partial(e.launch, early=True, other=-1, joined=True)
    launch(f"attend_decode_batch_{name}", 2 * n, 128, *arguments, shared=ring, least=least, apart=True)
    # Number of complete clusters that can be resident: 30 of 8 blocks on 132 multiprocessors.
    whole, far = max(16, (2 * n - 16) // 16 * 16), None if is_near else False
    launch(f"attend_decode_{name}", whole, 128, *arguments, shared=ring, most=1, far=far)
    if not is_near:
        launch(f"attend_decode_long_{name}", 2 * n, 128, *arguments, shared=ring, most=1, far=True)


def _named(entry: Paged, kv_type: str) -> str:
    """Return the cache type in kernel names: only the type of K if V is a part of K."""
    return kv_type_pair(kv_type)[0] if entry.v_in_k else kv_type.replace("/", "_")


def _attend_hadamard(e: Emitter, step: Step, name: str) -> None:
    """Attention over 4-bit V: Hadamard-rotated heads, padded to blocks of 32 columns."""
    stored = e.plan.paged[step.integer("entry")]
    heads = e.width(step.inputs[0]) // stored.k_dim
    k_room, v_room = (room(n, e.kv_type) for n in (stored.k_dim, stored.v_dim))
    is_rotated = kv_type_pair(e.kv_type)[0] == "q4"  # queries are rotated like keys
    entry = replace(stored, k_dim=k_room if is_rotated else stored.k_dim, v_dim=v_room)
    part_bytes = 4 * (4 + v_room)
    n_partials = PARTIAL_BYTES // part_bytes
    partials = e.scratch("attention parts", n_partials * part_bytes)
    stages, shared = _few_bytes(entry, e.device.shared_bytes)
    many = _prefill_bytes(entry, heads // entry.heads, e.kv_type, e.device.shared_bytes)
    arguments = _arguments(e, step, partials, n_partials, MAX_FEW_ROWS if many else _ALL_ROWS, stages, entry)
    q, out = arguments[:2]
    each, size = (GridRows(0), -(-heads // 4)), 4 * e.max_rows * heads
    if is_rotated:
        own = e.scratch("rotated queries", size * k_room)
        e.launch(
            "hadamard_heads", each, 128, q, own, heads, stored.k_dim, k_room, k_room, _hadamard_size(k_room, stored)
        )
        q = own
    rotated = e.scratch("rotated results", size * v_room)
    arguments = (q, rotated, *arguments[2:])
    columns = next(n for n in (64, 128, 256, 576) if v_room <= n)
    grid, n = 8 * e.device.n_processors, e.device.n_processors
    if many and name == "q4":  # a ring of raw bytes and scales
        ring = max(16 * (2 * k_room + 16) + 3 * 2 * 64 * (k_room + k_room // 8), _MIN_SHARED_BYTES)
        e.launch(f"attend_stream_{name}_{k_room}", 2 * n, 128, *arguments, shared=ring, early=True)
    else:
        e.launch(f"attend_hadamard_few_{name}_{columns}", grid, 128, *arguments, shared=shared, early=True)
    if many:
        blocks, least = (GridRows(0, per=QUERIES // (heads // entry.heads)), entry.heads), MAX_FEW_ROWS + 1
        kernel = f"attend_hadamard_prefill_{name}_{k_room}"
        e.launch(kernel, blocks, 256, *arguments, shared=many, least=least, early=True)
    e.launch(
        "hadamard_heads", each, 128, rotated, out, heads, v_room, stored.v_dim, v_room, _hadamard_size(v_room, stored)
    )


def _hadamard_size(columns: int, entry: Paged) -> int:
    """Columns of one Hadamard transform. See native/cpu/ops/hadamard.h."""
    return 32 if entry.v_in_k else columns & -columns


def _head_arguments(e: Emitter, store: Step) -> tuple[Argument, ...]:
    """Return the extra arguments of kernels that also store K and V."""
    rope, vectors = store.rope(), dict(zip(store.roles, store.weights, strict=True))
    return (
        e.value(store.inputs[1]),
        e.value(store.inputs[2]),
        e.vector(vectors["q_norm"]) if "q_norm" in vectors else _NONE,
        e.vector(vectors["k_norm"]) if "k_norm" in vectors else _NONE,
        0 if rope is None else rope.n_rot,
        e.column(store),
        int(rope is not None and rope.style == "adjacent"),
        store.number("eps"),
    )


def _prefill_bytes(entry: Paged, group: int, kv_type: str, most: int) -> int:
    """Return the shared memory of the prefill kernel in bytes, or 0 if there is no kernel for the head size."""
    columns = room(entry.k_dim, kv_type)
    if columns not in (64, 80, 96, 128) or columns != room(entry.v_dim, kv_type) or entry.v_in_k or group > QUERIES:
        return 0
    n_bytes = (QUERIES + 2 * 3 * 64) * (2 * columns + 16) + 4 * QUERIES * columns
    return n_bytes if n_bytes <= most else 0


def _few_bytes(entry: Paged, most: int) -> tuple[int, int]:
    """Return the pipeline stages of the decode kernel (copies of a group's K and V) and its shared memory in bytes."""

    def rows(columns: int) -> int:
        return 2 * room(columns, "f16") + 16

    queries, copy = 16 * rows(entry.k_dim), 64 * (rows(entry.k_dim) + (0 if entry.v_in_k else rows(entry.v_dim)))
    most -= 4096  # static shared memory of the kernel
    stages = 3 if queries + 3 * copy <= most // 2 else 2 if queries + 2 * copy <= most else 1
    if queries + stages * copy > most:
        raise UnsupportedError(
            f"attention over heads of {entry.k_dim} needs {(queries + copy) // 1024} KB of shared memory, but the GPU"
            f" gives a block {most // 1024}"
        )
    return stages, queries + stages * copy


def _arguments(
    e: Emitter, step: Step, partials: Address, n_partials: int, most: int, stages: int, rotated: Paged | None = None
) -> tuple[Argument, ...]:
    """Return the fields of struct Attend (native/cuda/attention/attend.cuh). `rotated`: the entry with padded heads."""
    stored = e.plan.paged[step.integer("entry")]
    heads, entry = e.width(step.inputs[0]) // stored.k_dim, rotated or stored
    k_room = room(entry.k_dim, e.kv_type)
    alibi, tables = step.number("alibi"), step.by_role("distances")
    sinks = step.by_role("sinks")
    return (
        e.value(step.inputs[0]),
        e.value(step.output),
        partials,
        e.array(f"parts done of {n_partials}", 4 * n_partials, lambda: np.zeros(n_partials, np.uint32)),
        e.vector(sinks[0]) if sinks else _NONE,
        e.array(f"slopes {alibi} {heads}", 4 * heads, lambda: alibi_slopes_f64(alibi, heads)) if alibi else _NONE,
        e.vector(tables[0]) if tables else _NONE,
        _bucket_table(e, tables[0].shape[0]) if tables else _NONE,
        step.integer("entry"),
        heads,
        entry.heads,
        entry.k_dim,
        entry.v_dim,
        k_room,
        k_room if entry.v_in_k else room(entry.v_dim, e.kv_type),
        _mask(step),
        step.integer("window"),
        step.integer("temper_length"),
        step.integer("temper_offset"),
        n_partials,
        most,
        stages,
        step.number("scale"),
        step.number("softcap"),
        step.number("temper"),
        heads // entry.heads,
    )


def _mask(step: Step) -> int:
    """Return the mask number in the kernels. Raises UnsupportedError for other masks."""
    if (mask := step.text("mask")) not in _MASKS:
        raise UnsupportedError(f"the cuda backend does not support the attention mask {mask}")
    return _MASKS[mask]


def _bucket_table(e: Emitter, n: int) -> Address:
    return e.array(f"buckets {n}", 8 * (_FARTHEST + 1), lambda: _buckets(n))


def _buckets(n: int) -> npt.NDArray[np.int32]:
    """Return the buckets of backward distances, then of forward distances."""
    back = distance_buckets(-np.arange(_FARTHEST + 1), n)
    return np.concatenate([back, back + n // 2]).astype(np.int32)
