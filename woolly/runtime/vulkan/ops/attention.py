"""KV cache stores and attention. Kernels: native/gpu/attention."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from woolly.errors import UnsupportedError
from woolly.plan import Paged, Plan, Step
from woolly.runtime.batch import Batch
from woolly.runtime.f64_math import alibi_slopes_f64, log_double
from woolly.runtime.gpu.batch_checks import MAX_CONTEXT
from woolly.runtime.gpu.device import Address, Argument, Number
from woolly.runtime.gpu.emitter import Emitter, GridRows
from woolly.runtime.gpu.state import room
from woolly.runtime.gpu.store_arguments import store_arguments
from woolly.runtime.options import kv_type_pair
from woolly.runtime.reference.ops import distance_buckets
from woolly.runtime.vulkan.emitters import emits
from woolly.runtime.vulkan.kernel_archive import open_archive
from woolly.runtime.vulkan.ops.linears import MAX_SPLIT_ROWS, is_plain_cache, merged_form, quantized_places

# "": causal, except that rows of an image may attend to later rows; "causal": strictly causal; "block": only the ranges
# in the batch.
_MASKS = {"": 0, "all": 1, "chunked": 2, "causal": 3, "block": 4}
_COLUMNS = (128, 256, 640)  # V columns of the kernel variants
# Positions per split, groups that share the splits of a row (as in attend.slang), maximum splits.
_SPLIT, _SHARERS, _MAX_SPLITS = 128, 32, 256
# Sparse attention: maximum splits per row for split attention of several rows.
_MAX_CHOSEN = 96
# Splits per row in small batches, which take twice the memory of a single row.
_FEW_SPLITS = 2 * _MAX_SPLITS // MAX_SPLIT_ROWS
_MERGED = 256  # columns per group of native/gpu/attention/merge.slang
# Queries per group of native/gpu/attention/tile.slang, and minimum batch rows for which it is faster.
_TILE, _MIN_TILED_ROWS = 32, 256
_MIN_SEQUENCE_ROWS = 32  # minimum rows of a sequence for tiled attention
# Maximum head columns of native/gpu/attention/staged.slang, and maximum rows for which it is faster: a step of eight
# rows on an H200 takes 8.9 ms without it and 9.2 ms with it.
_STAGED, _MAX_STAGED_ROWS = 128, 4
_TILE_SHARED = 30720  # bytes of shared memory of the tiled and staged kernels, with a margin
KINDS = ("f32", "f16", "q8_0", "q4")  # ids in native/gpu/attention/any.slang
_TEAM = 4  # query heads per group, which share keys and values
_MAX_COLUMNS = 576  # maximum head columns, as in native/gpu/attention/cache.slang
_NONE = Address(0)
_MAX_PAIRS = 128  # column pairs of keys stored without bias: one thread each


def is_far(batch: Batch) -> bool:
    """True if attention processes the splits of a row sequentially.

    That is the case for small batches with a context beyond the maximum splits, and for large batches with short
    sequences near the end.
    """
    if batch.n_rows >= _MIN_TILED_ROWS:
        return n_front(batch) == batch.n_rows
    if not 1 <= batch.n_rows <= MAX_SPLIT_ROWS:
        return False
    # A row may attend to later rows of the batch.
    n_seen = int(batch.positions.max()) + batch.n_rows
    return n_seen > _SPLIT * (_MAX_SPLITS if batch.n_rows == 1 else _FEW_SPLITS)


def n_front(batch: Batch) -> int:
    """Return the rows up to the last short sequence, which tiled attention skips, or all rows if only few follow.

    A tile computes all its queries once per sequence in it. The engine orders decode rows before prefill rows.
    """
    if batch.n_rows < _MIN_TILED_ROWS:
        return 0
    short = np.flatnonzero(np.diff(batch.offsets) < _MIN_SEQUENCE_ROWS)
    n = int(batch.offsets[short[-1] + 1]) if len(short) else 0
    farthest = int(batch.positions[:MAX_SPLIT_ROWS].max()) + batch.n_rows
    if 1 <= n <= MAX_SPLIT_ROWS and farthest > _SPLIT * _FEW_SPLITS:
        n = MAX_SPLIT_ROWS + 1  # forces sequential splits
    return n if batch.n_rows - n >= _MIN_TILED_ROWS else batch.n_rows


def _is_plain(step: Step) -> bool:
    """True if scores are scaled q*k products without softcap, temperature, ALiBi or distance bias."""
    return not (any(map(step.number, ("softcap", "temper", "alibi"))) or step.by_role("distances"))


def joined(plan: Plan, kv_type: str) -> frozenset[int]:
    """Return `store` steps followed by their attention: small batches fuse both in one kernel."""
    pairs = zip(plan.steps, plan.steps[1:], strict=False)
    return frozenset(i for i, (step, after) in enumerate(pairs) if _are_joined(kv_type, step, after))


def _are_joined(kv_type: str, step: Step | None, after: Step | None) -> bool:
    if step is None or after is None or (step.op, after.op) != ("store", "attend") or not is_plain_cache(kv_type):
        return False
    is_own = after.inputs[0] == step.output and after.integer("entry") == step.integer("entry")
    is_own &= after.text("mask") != "block"  # block ranges may exclude a row's own position
    return is_own and len(step.inputs) == 3 and len(after.inputs) == 1


@dataclass(frozen=True)
class _Cache:
    """Kernel names for the cache types of an entry."""

    name: str  # in names of attention kernels
    other: str  # in names of store, merge and Hadamard kernels
    kinds: tuple[int, ...] = ()  # type ids of K and V for generic kernels; empty: one type, stored unrotated

    @staticmethod
    def of(e: Emitter, entry: Paged, has_chosen: bool = False) -> _Cache:
        """Select kernels of one type for K and V, or generic ones. Sparse attention needs generic kernels."""
        k, v = kv_type_pair(e.kv_type)
        if entry.v_in_k:
            v = k
        if has_chosen:
            return _Cache("any", "any", (KINDS.index(k), KINDS.index(v)))
        if is_plain_cache(f"{k}/{v}"):
            return _Cache(k, k)
        return _Cache(k if k == v else "any", "any", (KINDS.index(k), KINDS.index(v)))


def _centers(e: Emitter, step: Step) -> tuple[Number, ...]:
    """Return the key bias omitted from the cache, rope factors of its column pairs, the pairs and their count."""
    if not (found := step.by_role("k_bias")):
        return _NONE, _NONE, _NONE, 0
    rope = step.rope()
    assert rope is not None
    half, name = rope.n_rot // 2, found[0].name
    if half > _MAX_PAIRS:
        raise UnsupportedError(
            f"Vulkan and Metal do not support 4-bit keys with a bias in heads of more than {2 * _MAX_PAIRS} columns;"
            " use q8_0/q4"
        )
    pair = np.arange(half)
    left, right = (2 * pair, 2 * pair + 1) if rope.style == "adjacent" else (pair, pair + half)
    bias = np.asarray(e.views[name].dequantize(), np.float32).reshape(-1, step.integer("head_dim"))
    pair = np.flatnonzero((bias[:, left] != 0).any(axis=0) | (bias[:, right] != 0).any(axis=0))
    columns = e.column(step) + pair
    rows = np.stack([left[pair], right[pair], columns], axis=1).astype(np.int32)
    rotations = e.rotations_of(columns, _SPLIT)
    return (
        e.vector(found[0]),
        e.array(f"turns {columns.tolist()}", rotations.nbytes, lambda: rotations),
        e.array(f"pairs {name}", rows.nbytes, lambda: rows),
        len(pair),
    )


def _sinks(e: Emitter, step: Step) -> Address:
    return e.vector(found[0]) if (found := step.by_role("sinks")) else _NONE


def _tempers(e: Emitter, step: Step) -> Address:
    """Return the query scales of temperature tuning, by position // temper_length."""
    temper = float(np.float32(step.number("temper")))  # rounded to f32, as passed to C++
    length, offset = step.integer("temper_length"), step.integer("temper_offset")
    if not temper:
        return _NONE
    n = max(0, MAX_CONTEXT + offset) // length + 1
    key = f"tempers {temper} {length} {offset}"

    def make() -> npt.NDArray[np.float32]:
        return (1.0 + temper * log_double(1.0 + np.arange(n, dtype=np.float64))).astype(np.float32)

    return e.array(key, 4 * n, make)


def _slopes(e: Emitter, step: Step, heads: int) -> Address:
    most = step.number("alibi")
    return e.array(f"slopes {most} {heads}", 4 * heads, lambda: alibi_slopes_f64(most, heads)) if most else _NONE


def _weighing(e: Emitter, step: Step, heads: int) -> tuple[Number, ...]:
    """Return rare score modifiers: struct Weighing of native/gpu/attention/seen.slang."""
    return (
        *(_tempers(e, step), _slopes(e, step, heads), _distances(e, step, heads)),
        *(
            max(1, step.integer("temper_length")),
            step.integer("temper_offset"),
            _max_context(e),
            step.number("softcap"),
        ),
    )


def _max_context(e: Emitter) -> int:
    """Return the maximum distance for relative position bias. Such sequences are processed in one batch."""
    return e.max_rows


def _distances(e: Emitter, step: Step, heads: int) -> Address:
    """Return the relative position bias [heads, distance], from negative to positive distances."""
    if not (found := step.by_role("distances")):
        return _NONE
    longest, name = _max_context(e), found[0].name

    def make() -> npt.NDArray[np.float32]:
        table = np.asarray(e.views[name].dequantize(), np.float32).reshape(-1, heads)
        return np.ascontiguousarray(table[distance_buckets(np.arange(-longest, longest + 1), len(table))].T)

    return e.array(f"distances {name} {heads}", 4 * heads * (2 * longest + 1), make)


@emits("store")
def _store(e: Emitter, step: Step) -> None:
    entry = e.plan.paged[step.integer("entry")]
    cache = _Cache.of(e, entry)
    if f"store_{cache.other}" not in open_archive().names():
        raise UnsupportedError(f"Vulkan and Metal do not support kv_type {e.kv_type}")
    heads = e.width(step.inputs[0]) // step.integer("head_dim") + entry.heads
    more = (*_centers(e, step)[:1], *cache.kinds) if cache.kinds else ()
    launch = partial(e.launch, f"store_{cache.other}", (GridRows(0), heads), 64, *store_arguments(e, step), *more)
    if not _are_joined(e.kv_type, step, e.new_stream(1)):
        launch()
        return
    launch(most=MAX_SPLIT_ROWS, far=False, other=1, apart=True)
    launch(most=MAX_SPLIT_ROWS, far=True)
    launch(least=MAX_SPLIT_ROWS + 1)


@emits("attend")
def _attend(e: Emitter, step: Step) -> None:
    entry = e.plan.paged[step.integer("entry")]
    if (mask := step.text("mask")) not in _MASKS:
        raise UnsupportedError(f"Vulkan and Metal do not support the attention mask {mask}")
    x = step.inputs[0]
    heads = e.width(x) // entry.k_dim
    v_dim = e.width(step.output) // heads
    columns = next(n for n in _COLUMNS if v_dim <= n)
    has_chosen = len(step.inputs) > 1
    shares = _shares(step.integer("chosen")) if has_chosen else (_MAX_SPLITS, 2)
    cache = _Cache.of(e, entry, has_chosen)
    sums = room(v_dim, e.kv_type) if cache.kinds else v_dim
    parts = e.scratch("attention parts", 4 * heads * max(1, math.prod(shares)) * (sums + 2))
    first = (
        *(e.value(x), e.value(step.output), parts, _sinks(e, step)),
        *(step.integer("entry"), heads, entry.heads, entry.k_dim, v_dim),
        *(room(entry.k_dim, e.kv_type), room(v_dim, e.kv_type), int(entry.v_in_k)),
        *(_MASKS[mask], step.integer("window")),
    )
    last: tuple[Argument, ...] = (step.number("scale"), _NONE if _is_plain(step) else _weighing(e, step, heads))
    is_tiled = v_dim <= _COLUMNS[0] and not has_chosen and e.device.shared_bytes >= _TILE_SHARED
    if cache.kinds:
        n_bytes = 4 * e.max_rows * heads * room(entry.k_dim, e.kv_type)
        rotated = e.scratch("rotated queries", n_bytes) if is_tiled else _NONE
        last = (*last, (rotated, *_centers(e, step), *cache.kinds, *_choice(e, step)))
    kind = f"{cache.name}_{columns}"
    # In small batches, splits run in parallel; beyond the allocated memory they run sequentially.
    teams = entry.heads * -(-(heads // entry.heads) // _TEAM)
    if has_chosen:
        _attend_chosen(e, kind, heads, entry.heads, shares, first, last)
        return
    form, n = merged_form(e, step, e.new_stream(1)), heads * v_dim
    store = e.new_stream(-1)
    if not _are_joined(e.kv_type, store, step):
        store = None
    for splits, least, most in ((_MAX_SPLITS, 0, 1), (_FEW_SPLITS, 2, MAX_SPLIT_ROWS)):
        args = (*first, splits, *last)
        launch = partial(e.launch, least=least, most=most, far=False)
        grid = (teams, GridRows(0), _SHARERS)
        launch(f"attend_parts_{kind}", grid, 128, *args, other=0 if store is None else -1, apart=store is not None)
        if store is not None:
            _attend_newest(e, store, kind, cache, grid, args, least, most)
        if form:
            where = (n, v_dim, splits, _MASKS[mask], step.integer("window"))
            merged = (parts, e.value(step.output), _sinks(e, step), *quantized_places(e, n, form), *where)
            launch(f"merge_quantize_{form}", (-(-n // _MERGED), GridRows(0)), _MERGED, *merged)
        else:
            launch(f"attend_merge_{cache.other}_{columns}", (heads, GridRows(0)), 128, *args)
    e.launch(f"attend_{kind}", (teams, GridRows(0)), 128, *args, most=MAX_SPLIT_ROWS, far=True)
    most = _MIN_TILED_ROWS - 1 if is_tiled else 1 << 30
    e.launch(f"attend_{kind}", (teams, GridRows(0)), 128, *args, least=MAX_SPLIT_ROWS + 1, most=most)
    if is_tiled:
        e.launch(f"attend_{kind}", (teams, GridRows(0)), 128, *args, least=_MIN_TILED_ROWS, far=True)
        own = heads // entry.heads
        per = max(1, _TILE // own)
        tiles, front = GridRows(3, per, -(-own // _TILE)), GridRows(2, per)
        if cache.kinds:
            e.launch(f"hadamard_{cache.other}", (heads, GridRows(0)), 128, *args, least=_MIN_TILED_ROWS, far=False)
        plain = "plain_" if _is_plain(step) and not cache.kinds else ""
        kernel = f"attend_tile_{plain}{cache.name}"
        e.launch(kernel, (entry.heads, tiles), 128, *args, least=_MIN_TILED_ROWS, far=False)
        # Front rows are independent of the tiles. Up to MAX_SPLIT_ROWS of them use split attention, as in small
        # batches.
        launch, few = partial(e.launch, kind=2, far=False), 0 if MAX_SPLIT_ROWS % per else MAX_SPLIT_ROWS
        launch(f"attend_{kind}", (teams, front), 128, *args, least=few + 1, early=True)
        if few:
            launch(f"attend_parts_{kind}", (teams, front, _SHARERS), 128, *args, most=few, early=True)
            launch(f"attend_merge_{cache.other}_{columns}", (heads, front), 128, *args, most=few)


def _attend_newest(
    e: Emitter,
    store: Step,
    kind: str,
    cache: _Cache,
    grid: tuple[int | GridRows, ...],
    args: tuple[Argument, ...],
    least: int,
    most: int,
) -> None:
    """Launch attention fused with the KV store, for rows that do not attend to each other."""
    q, k, v, _, q_norm, k_norm, _, _, _, _, _, *rooms, n_rot, column, is_adjacent, eps = store_arguments(e, store)
    given = (q, *args[1:], (k, v, q_norm, k_norm, n_rot, column, is_adjacent, eps))
    launch = partial(e.launch, other=-1, joined=True, apart=True, far=False)
    if cache.name == "f16" and max(rooms) <= _STAGED and e.device.shared_bytes >= _TILE_SHARED:
        launch("attend_staged_f16", grid, 256, *given, least=least, most=min(most, _MAX_STAGED_ROWS))
        least = _MAX_STAGED_ROWS + 1
    if least <= most:
        launch(f"attend_row_{kind}", grid, 128, *given, least=least, most=most)


def _choice(e: Emitter, step: Step) -> tuple[Number, ...]:
    """Return the selected positions: address, columns per row, maximum count and block size, then zeros.

    The zeros are for the fields of `attend_compressed`.
    """
    if len(step.inputs) == 1:
        return _NONE, 0, 0, 1, 0, 0, 0
    chosen = step.inputs[1]
    return e.value(chosen), e.width(chosen), step.integer("chosen"), step.integer("block"), 0, 0, 0


@emits("cache_rows")
def _cache_rows(e: Emitter, step: Step) -> None:
    """Store a row as a single K head. The output equals the input."""
    x, index = step.inputs[0], step.integer("entry")
    width, place = e.width(x), e.value(x)
    cache, columns = _Cache.of(e, e.plan.paged[index]), room(width, e.kv_type)
    if width > _MAX_COLUMNS:
        raise UnsupportedError(f"Vulkan and Metal do not support cached rows of more than {_MAX_COLUMNS} columns")
    args = (place, place, _NONE, e.value(step.output), _NONE, _NONE, index, 1, 1, width, width, columns, columns)
    more = (_NONE, *cache.kinds) if cache.kinds else ()
    e.launch(f"store_{cache.other}", (GridRows(0), 2), 64, *args, 0, 0, 0, 0.0, *more)


@emits("attend_compressed")
def _attend_compressed(e: Emitter, step: Step) -> None:
    """Attend to the latest rows and to compressed blocks, treated as selected positions of two entries."""
    q, latest, _, *chosen = step.inputs
    width, window, every = e.width(latest), step.integer("window"), step.integer("every")
    heads, cache = e.width(q) // width, _Cache.of(e, e.plan.paged[step.integer("entry")], has_chosen=True)
    columns, n_chosen = room(width, e.kv_type), e.width(chosen[0]) if chosen else 0
    kind = f"any_{next(n for n in _COLUMNS if columns <= n)}"
    shares = _shares(window + (n_chosen or MAX_CONTEXT // every))
    if is_near := not shares[1]:  # the memory is for rows with a short context only
        shares = _shares(window + _SPLIT * _MAX_SPLITS // every)
    parts = e.scratch("attention parts", 4 * heads * max(1, math.prod(shares)) * (columns + 2))
    first = (
        *(e.value(q), e.value(step.output), parts, _sinks(e, step)),
        *(step.integer("entry"), heads, 1, width, width, columns, columns, 1, _MASKS[""], 0),
    )
    keeping = (
        *(_NONE, _NONE, _NONE, _NONE, 0, *cache.kinds),
        *(e.value(chosen[0]) if chosen else _NONE, n_chosen, 0, 1, window, step.integer("blocks"), every),
    )
    last = (step.number("scale"), _NONE, keeping)
    _attend_chosen(e, kind, heads, 1, shares, first, last, is_near)


def _attend_chosen(
    e: Emitter,
    kind: str,
    heads: int,
    n_kv: int,
    shares: tuple[int, int],
    first: tuple[Argument, ...],
    last: tuple[Argument, ...],
    is_near: bool = False,
) -> None:
    """Launch sparse attention over selected positions. Small batches use split attention.

    `is_near`: the memory for splits suffices only for rows with a short context.
    """
    (n_splits, most), teams = shares, n_kv * -(-(heads // n_kv) // _TEAM)
    args = (*first, n_splits, *last)
    if most:
        far = False if is_near else None
        e.launch(f"attend_parts_{kind}", (teams, GridRows(0), _SHARERS), 128, *args, most=most, far=far)
        e.launch(f"attend_merge_{kind}", (heads, GridRows(0)), 128, *args, most=most, far=far)
        if is_near:
            e.launch(f"attend_{kind}", (teams, GridRows(0)), 128, *args, most=most, far=True)
    e.launch(f"attend_{kind}", (teams, GridRows(0)), 128, *args, least=most + 1)


def _shares(n_seen: int) -> tuple[int, int]:
    """Return the splits of a row with `n_seen` positions, and the maximum rows whose splits fit in memory."""
    n = -(-n_seen // _SPLIT)
    return n, MAX_SPLIT_ROWS if n <= _MAX_CHOSEN else int(n <= _MAX_SPLITS)
