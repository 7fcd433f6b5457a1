"""Share: layers and memory of a model on one device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceShare:
    """Number of layers, and memory in bytes, on one device."""

    device: str  # "cuda:0", "cpu"
    name: str  # of the GPU, as reported by the driver; "" for the CPU
    n_layers: int  # complete layers
    n_without_experts: int  # further layers with their experts on the CPU
    has_output: bool  # whether logits are computed there
    weights: int  # bytes
    cache: int  # bytes of the requested cache, or of the smallest one
    values: int  # bytes of intermediate values, and a reserve
    free: int | None = None  # free bytes before the model is loaded; None for the CPU
    total: int | None = None
    driver: str = ""  # GPU driver, as in `About.device_driver`
