"""The Share: layers and memory of a model on one device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """Layers and bytes of one device."""

    device: str  # "cuda:0", "cpu"
    name: str  # of the GPU, as its maker calls it; "" of the CPU
    n_layers: int  # complete layers
    n_without_experts: int  # further layers, whose experts are on the CPU
    has_output: bool  # whether logits are computed there
    weights: int  # bytes
    cache: int  # bytes of the cache that is asked for, or of the least that there is
    values: int  # bytes of intermediate values, and a reserve
    free: int | None = None  # bytes before the model came; None: of the CPU
    total: int | None = None
    driver: str = ""  # of the GPU, as `About.device_driver`
