"""Vision and audio encoders: turn image patches or audio frames into rows of a prompt. One file per family."""

from typing import TYPE_CHECKING

from woolly.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from woolly.models.towers.params import AudioParams, TowerParams
    from woolly.models.towers.patch_layout import PatchLayout
    from woolly.models.towers.registry import TracedTower, trace_towers

__all__ = ["AudioParams", "PatchLayout", "TowerParams", "TracedTower", "trace_towers"]

__getattr__ = lazy_getattr(
    __name__,
    {
        "patch_layout": "PatchLayout",
        "params": "AudioParams TowerParams",
        "registry": "TracedTower trace_towers",
    },
)
