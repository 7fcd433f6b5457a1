"""Diffusion decoding: answers of masked tokens, filled in by confidence, in batches between the engine's steps."""

from typing import TYPE_CHECKING

from woolly.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from woolly.engine.diffusion.canvas import Canvas
    from woolly.engine.diffusion.runner import DiffusionRunner
    from woolly.engine.diffusion.settings import (
        DiffusionSettings,
        answer_length,
        check_diffusion_request,
        read_settings,
    )

__all__ = [
    "Canvas",
    "DiffusionRunner",
    "DiffusionSettings",
    "answer_length",
    "check_diffusion_request",
    "read_settings",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "canvas": "Canvas",
        "runner": "DiffusionRunner",
        "settings": "DiffusionSettings answer_length check_diffusion_request read_settings",
    },
)
