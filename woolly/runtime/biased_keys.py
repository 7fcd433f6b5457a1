"""Warning about keys with biases in a 4-bit cache, which loses most of their precision."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from woolly.plan.passes import center_keys, fuse_attention, keeps_biases
from woolly.runtime.options import kv_type_pair

if TYPE_CHECKING:
    from woolly.gguf import Tensor
    from woolly.plan import Plan

log = logging.getLogger("woolly.runtime")


def warn_of_biased_keys(plan: Plan, tensors: Mapping[str, Tensor], kv_type: str, *, centers: bool) -> None:
    """Warn once per file if its 4-bit keys keep their biases. `centers`: the backend removes them where it can."""
    if kv_type_pair(kv_type)[0] != "q4":
        return
    stored = fuse_attention(plan)
    if keeps_biases(center_keys(stored) if centers else stored):
        _warn(tensors[next(iter(plan.weights))].path)


@functools.cache
def _warn(path: Path) -> None:
    log.warning(
        "the keys of %s have biases and lose precision in 4 bits: kv_type q4 changes answers noticeably; use q8_0/q4",
        path.name,
    )
