"""Registry of families: every module of `woolly/multimodal/families/` with `FAMILIES`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from woolly.multimodal import families
from woolly.multimodal.family import AudioFamily, VisionFamily

_VISION: dict[str, VisionFamily] = {}  # families of imported modules
_AUDIO: dict[str, AudioFamily] = {}


def vision_families() -> dict[str, VisionFamily]:
    """Return all vision families by name."""
    _ = list(_imported())
    return dict(sorted(_VISION.items()))


def audio_families() -> dict[str, AudioFamily]:
    """Return all audio families by name."""
    _ = list(_imported())
    return dict(sorted(_AUDIO.items()))


def find_vision_family(name: str) -> VisionFamily | None:
    """Return the vision family with this `clip.projector_type`, or None."""
    if name not in _VISION:
        next((None for _ in _imported(name) if name in _VISION), None)
    return _VISION.get(name)


def find_audio_family(name: str) -> AudioFamily | None:
    """Return the audio family with this `clip.projector_type`, or None."""
    if name not in _AUDIO:
        next((None for _ in _imported(name) if name in _AUDIO), None)
    return _AUDIO.get(name)


def _imported(first: str = "") -> Iterator[None]:
    """Import the modules one by one. The module named `first` comes first, so usually no other one is imported."""
    names = [found.name for found in pkgutil.iter_modules(families.__path__)]
    for name in sorted(names, key=lambda name: name != first):
        for family in importlib.import_module(f"{families.__name__}.{name}").FAMILIES:
            known = _VISION if isinstance(family, VisionFamily) else _AUDIO
            known.setdefault(family.name, family)
        yield
