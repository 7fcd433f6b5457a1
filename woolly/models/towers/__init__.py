"""Towers: from patches of an image, or frames of an audio clip, to rows of a prompt. One file for each family."""

from typing import TYPE_CHECKING

from woolly.later import later

if TYPE_CHECKING:
    from woolly.models.towers.arrangement import Arrangement
    from woolly.models.towers.params import AudioParams, TowerParams
    from woolly.models.towers.registry import TracedTower, trace_towers

__all__ = ["Arrangement", "AudioParams", "TowerParams", "TracedTower", "trace_towers"]

__getattr__ = later(
    __name__,
    {
        "arrangement": "Arrangement",
        "params": "AudioParams TowerParams",
        "registry": "TracedTower trace_towers",
    },
)
