"""Multimodal input: encoders turn images and audio into embeddings, one slice of work per engine step."""

from typing import TYPE_CHECKING

from woolly.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from woolly.engine.multimodal.encoder_decoder import AudioEncoder, Source, TextEncoder, open_encoder, source_backend
    from woolly.engine.multimodal.encoder_run import EncoderRun
    from woolly.engine.multimodal.encoder_scheduler import EncoderRequest, EncoderScheduler
    from woolly.engine.multimodal.memory import tower_bytes
    from woolly.engine.multimodal.multimodal_input import (
        MultimodalInput,
        PlaceholderRange,
        has_placeholders,
        read_prompt,
    )
    from woolly.engine.multimodal.prompt_checks import read_multimodal_prompt
    from woolly.engine.multimodal.tower import Tower, open_tower, tower_backend
    from woolly.engine.multimodal.transducer import TransducerDecoder

__all__ = [
    "AudioEncoder",
    "EncoderRequest",
    "EncoderRun",
    "EncoderScheduler",
    "MultimodalInput",
    "PlaceholderRange",
    "Source",
    "TextEncoder",
    "Tower",
    "TransducerDecoder",
    "has_placeholders",
    "open_encoder",
    "open_tower",
    "read_multimodal_prompt",
    "read_prompt",
    "source_backend",
    "tower_backend",
    "tower_bytes",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "prompt_checks": "read_multimodal_prompt",
        "encoder_decoder": "AudioEncoder Source TextEncoder open_encoder source_backend",
        "encoder_run": "EncoderRun",
        "encoder_scheduler": "EncoderRequest EncoderScheduler",
        "memory": "tower_bytes",
        "transducer": "TransducerDecoder",
        "tower": "Tower open_tower tower_backend",
        "multimodal_input": "MultimodalInput PlaceholderRange has_placeholders read_prompt",
    },
)
