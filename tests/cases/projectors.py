"""Headers of projectors' files, without weights: what commands and listings read of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from woolly.gguf import GGUFWriter


def write_header(path: Path, projector: str = "gemma3", **keys: Any) -> Path:
    """Writes a file that says which projector it is, and gives the path back."""
    writer = GGUFWriter(path)
    writer.add("general.architecture", "clip")
    own = {
        "has_vision_encoder": True,
        "projector_type": projector,
        "vision.image_size": 896,
        "vision.patch_size": 14,
        "vision.image_mean": [0.5] * 3,
        "vision.image_std": [0.5] * 3,
    }
    for key, value in (own | keys).items():
        writer.add(f"clip.{key}", value)
    writer.write()
    return path
