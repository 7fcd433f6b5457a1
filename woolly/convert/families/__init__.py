"""Table of convertible architectures, with one row each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from woolly.convert.families import (
    classic,
    decoders,
    diffusion,
    encoders,
    gemma,
    hybrids,
    mla,
    moe,
    plamo,
    remote_code,
    rwkv,
    skeletons,
    sliding_window,
    speech,
    variants,
)
from woolly.convert.family import CheckpointFamily

__all__ = ["FAMILIES", "find_family"]

_PAGES = (
    *(decoders, diffusion, encoders, gemma, hybrids, mla, moe, classic, remote_code),
    *(plamo, rwkv, skeletons, speech, sliding_window, variants),
)
FAMILIES: Mapping[str, CheckpointFamily] = {family.architecture: family for page in _PAGES for family in page.FAMILIES}


def find_family(classes: Sequence[str]) -> CheckpointFamily | None:
    """Return the family with one of these classes, or None."""
    known = {name: family for family in FAMILIES.values() for name in family.classes.split()}
    return next((known[name] for name in classes if name in known), None)
