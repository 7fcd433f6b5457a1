"""Cases of attention: contexts, windows, caches, and heads of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle

from tests.cases.ops import EPS, Case, CaseTracer, Run, _both, _tables, _vector
from tests.cases.weights import random_vector
from woolly.plan import Handle, Rope
from woolly.plan.ops.attention import Mask

# Contexts that cross pages of 32 and splits of 128, in few rows and in many.
_SHORT: tuple[Run, ...] = (((5, 0, (3,)),), ((1, 5, (3,)),), ((1, 6, (3,)),))
_PAGES: tuple[Run, ...] = (((31, 0, (7, 2)),), ((2, 31, (7, 2)),), ((14, 33, (7, 2)),))
_LONG = tuple(range(10, 0, -1))
_SPLITS: tuple[Run, ...] = (
    ((127, 0, _LONG),),
    ((1, 127, _LONG),),
    ((1, 128, _LONG),),
    ((2, 129, _LONG),),
    ((140, 131, _LONG),),
    ((3, 271, _LONG),),
)
_TOGETHER: tuple[Run, ...] = (
    ((40, 0, (11, 5)), (3, 0, (0,)), (150, 0, (1, 2, 3, 4, 6))),
    ((1, 40, (11, 5)), (2, 3, (0,)), (1, 150, (1, 2, 3, 4, 6))),
    ((1, 151, (1, 2, 3, 4, 6)), (1, 41, (11, 5))),
)


def _attention(
    name: str,
    head_dim: int,
    group: int = 2,
    style: str = "neox",
    kv_type: str = "f32",
    runs: tuple[Run, ...] = _PAGES,
    *,
    kv_heads: int = 2,
    n_rot: int | None = None,
    norms: bool = False,
    divisors: bool = False,
    window: int = 0,
    softcap: float = 0.0,
    sinks: bool = False,
    temper: float = 0.0,
    v_dim: int = 0,
    v_in_k: bool = False,
    mask: Mask = "",
    alibi: float = 0.0,
) -> Case:
    n_rot = head_dim if n_rot is None else n_rot
    width = kv_heads * head_dim
    v_dim = v_dim or head_dim

    def build(p: CaseTracer) -> Handle:
        q, k, v = p.embed("q"), p.embed("k"), None if v_in_k else p.embed("v")
        if norms:
            q, k = p.rms_norm(q, "q_norm", eps=EPS), p.rms_norm(k, "k_norm", eps=EPS)
        if style != "none":
            rope = Rope(head_dim, n_rot, 10000.0, style)  # type: ignore[arg-type]
            q, k = (p.rope(x, rope, "rope_freqs" if divisors else None) for x in (q, k))
        options = {"window": window, "softcap": softcap, "temper": temper, "temper_length": 9, "mask": mask}
        options |= {"v_dim": v_dim if v_in_k else 0, "alibi": alibi}
        scale = head_dim**-0.5
        return p.attention(q, k, v, head_dim=head_dim, scale=scale, sinks="sinks" if sinks else None, **options)

    makes = [_tables(q=group * width, k=width, **({} if v_in_k else {"v": kv_heads * v_dim}))]
    if norms:
        makes += [_vector("q_norm", head_dim), _vector("k_norm", head_dim)]
    if sinks:
        makes += [_vector("sinks", group * kv_heads)]
    if divisors:
        makes += [lambda rng: {"rope_freqs.weight": random_vector(rng, n_rot // 2, 3.0)}]
    return Case(f"attend-{name}", "attend", _both(*makes), build, "attend", runs, kv_type)


def _attentions() -> Iterator[Case]:
    groups, styles, contexts = (
        cycle((1, 2, 3, 4, 9)),
        cycle(("adjacent", "neox", "none")),
        cycle((_SHORT, _PAGES, _SPLITS, _TOGETHER)),
    )
    for head_dim in (16, 32, 48, 64, 80, 96, 128):
        for kv_type in ("f32", "f16", "q8_0"):
            if kv_type == "q8_0" and head_dim % 32 != 0:
                continue
            group, style, runs = next(groups), next(styles), next(contexts)
            yield _attention(f"{head_dim}-{kv_type}-group{group}-{style}", head_dim, group, style, kv_type, runs)
    for kv_type in ("f32", "f16", "q8_0"):
        for runs, name in ((_SPLITS, "splits"), (_TOGETHER, "together")):
            yield _attention(f"{name}-{kv_type}", 32, 3, "neox", kv_type, runs)
            for window in (1, 5, 40, 130):
                yield _attention(f"{name}-window{window}-{kv_type}", 32, 2, "adjacent", kv_type, runs, window=window)
            yield _attention(f"{name}-softcap-{kv_type}", 32, 2, "none", kv_type, runs, window=40, softcap=2.0)
    yield _attention("one-kv-head", 64, 9, "neox", "f16", _SPLITS, kv_heads=1)
    # Heads that do not fill the blocks of a cache, and the longest.
    for head_dim, kv_type in (
        (2, "f32"),
        (8, "f16"),
        (24, "q8_0"),
        (40, "f32"),
        (72, "f16"),
        (80, "q8_0"),
        (576, "q8_0"),
    ):
        runs = next(contexts)
        yield _attention(f"{head_dim}-{kv_type}-filled", head_dim, 2, "neox", kv_type, runs, temper=0.1)
    for kv_type in ("f32", "f16", "q8_0"):
        yield _attention(f"sinks-{kv_type}", 32, 3, "neox", kv_type, _SPLITS, sinks=True)
        yield _attention(f"sinks-window-{kv_type}", 32, 2, "none", kv_type, _TOGETHER, sinks=True, window=40)
    # V of another width than K, V inside K, and windows that begin anew.
    for head_dim, v_dim, kv_type in ((192, 128, "f16"), (24, 40, "q8_0"), (48, 8, "f32")):
        yield _attention(f"{head_dim}-v{v_dim}-{kv_type}", head_dim, 2, "neox", kv_type, next(contexts), v_dim=v_dim)
    for head_dim, v_dim, kv_type in ((576, 512, "f16"), (80, 40, "q8_0"), (24, 17, "f32")):
        for runs, name in ((_SPLITS, "splits"), (_TOGETHER, "together")):
            yield _attention(
                f"{name}-{head_dim}-inside{v_dim}-{kv_type}",
                head_dim,
                5,
                "none",
                kv_type,
                runs,
                kv_heads=1,
                v_dim=v_dim,
                v_in_k=True,
            )
    for runs, name in ((_SPLITS, "splits"), (_TOGETHER, "together")):
        for window in (3, 40, 130):
            yield _attention(f"{name}-chunks{window}", 32, 2, "adjacent", "f16", runs, window=window, mask="chunked")
    # Scores that fall with distance, of heads whose number is a power of two or not.
    for kv_type, group in (("f32", 2), ("f16", 3), ("q8_0", 5)):
        for runs, name in ((_SPLITS, "splits"), (_TOGETHER, "together")):
            yield _attention(f"{name}-alibi-{kv_type}", 32, group, "none", kv_type, runs, alibi=8.0)
    yield _attention("alibi-window", 48, 2, "none", "f16", _SPLITS, window=40, alibi=6.0)
    for style in ("adjacent", "neox"):
        yield _attention(f"norms-{style}", 48, 2, style, norms=True)
        yield _attention(f"divisors-{style}", 32, 2, style, divisors=True)
        yield _attention(f"part-{style}", 64, 2, style, n_rot=24)


def _four_bits() -> Iterator[Case]:
    """4 bits of turned heads: filled up, of V inside K, of another width, and for V alone."""
    yield _attention("64-q4", 64, 4, "neox", "q4", _SPLITS)
    yield _attention("128-q8_0-q4", 128, 2, "adjacent", "q8_0/q4", _TOGETHER, window=40)
    yield _attention("80-v40-q4", 80, 3, "none", "q4", _PAGES, v_dim=40, temper=0.1)
    yield _attention("f16-q4-sinks", 32, 3, "neox", "f16/q4", _SPLITS, sinks=True)
    yield _attention("80-inside40-q4", 80, 5, "none", "q4", _TOGETHER, kv_heads=1, v_dim=40, v_in_k=True)


def _pairs() -> Iterator[Case]:
    """K and V of every two types, of heads that fill no block."""
    types = ("f32", "f16", "q8_0", "q4")
    for k, v in ((k, v) for k in types for v in types if k != v):
        yield _attention(f"pair-{k}-{v}", 40, 3, "neox", f"{k}/{v}", _PAGES, v_dim=24)


FOUR_BITS = {case.name: case for case in _four_bits()}
PAIRS = {case.name: case for case in _pairs()}  # which the cuda backend does not have all
ATTENTIONS = {case.name: case for case in _attentions()}
# What tiles of queries are tried with, which GPUs take for more rows than cases have: splits, windows, heads that fill
# no piece of the cache, sequences.
TILED = (
    *("attend-sinks-window-f32", "attend-together-24-inside17-f32", "attend-splits-alibi-f32"),
    *("attend-128-f16-group2-neox", "attend-128-q8_0-group3-none", "attend-together-softcap-q8_0"),
    *("attend-together-chunks40", "attend-all-64-3-0-f16", "attend-far-2-10"),
)
