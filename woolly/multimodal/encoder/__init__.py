"""Encoders of images and audio: tracing, and layers, stages and patch layouts that families share."""

from typing import TYPE_CHECKING

from woolly.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from woolly.multimodal.encoder.params import AudioParams, TowerParams
    from woolly.multimodal.encoder.patch_layout import PatchLayout
    from woolly.multimodal.encoder.tracing import TracedTower, trace_towers

__all__ = ["AudioParams", "PatchLayout", "TowerParams", "TracedTower", "trace_towers"]

__getattr__ = lazy_getattr(
    __name__,
    {
        "patch_layout": "PatchLayout",
        "params": "AudioParams TowerParams",
        "tracing": "TracedTower trace_towers",
    },
)
