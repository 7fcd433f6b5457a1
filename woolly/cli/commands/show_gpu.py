"""Part of a model that fits the GPU of this machine, for `woolly show`."""

from __future__ import annotations

from typing import Any

from woolly.cli.terminal.human_readable import format_size
from woolly.errors import DeviceError, WoollyError
from woolly.gguf import GGUFFile
from woolly.plan import Plan
from woolly.runtime import Gpu, Options, find_gpu, plan_placement


def detect_gpu() -> tuple[Gpu | None, str]:
    """Return the GPU that `auto` selects, or None and the reason."""
    try:
        return find_gpu(), ""
    except DeviceError as error:
        return None, error.fault


def estimate_on_gpu(card: Gpu, file: GGUFFile, plan: Plan, ctx: int, kv_type: str | None = None) -> dict[str, Any]:
    """Describe the GPU and the part of the model that fits it with a cache of `ctx` tokens."""
    facts: dict[str, Any] = {
        "name": card.name,
        "level": card.level,
        "free": card.free,
        "total": card.total,
        "bandwidth_gbs": None if card.bandwidth is None else round(card.bandwidth / 1e9, 1),
    }
    try:
        placement = plan_placement(plan, file.tensors, Options(kv_type=kv_type, cache_tokens=ctx))
    except WoollyError as error:
        reason = error.fault if isinstance(error, DeviceError) else str(error)
        return {**facts, "bandwidth_gbs": None, "unused": reason}
    on_gpu = [share for share in placement.shares if share.device != "cpu"]
    return {
        **facts,
        "driver": " and ".join(dict.fromkeys(share.driver for share in on_gpu)),
        "fits": placement.is_whole,
        "placement": str(placement),
        "weights": sum(share.weights for share in on_gpu),
        "kv_cache": sum(share.cache for share in on_gpu),
        "cpu_bytes_per_token": placement.cpu_bytes,
    }


def describe_gpu(gpu: dict[str, Any]) -> str:
    """Return a line about the GPU, or about the reason why there is none."""
    if "name" not in gpu:
        return f"none: {gpu['unused']}"
    driver = f" ({gpu['driver']})" if gpu.get("driver") else ""
    name = f"{gpu['name']}, {gpu['level']}{driver}, {format_size(gpu['free'])} of {format_size(gpu['total'])} free"
    return f"{name}; not used: {gpu['unused']}" if "unused" in gpu else f"{name}; {gpu['placement']}"
