"""Pictures and sounds of requests: a tower turns them into rows beside the answers, a bit of its work in each step."""

from typing import TYPE_CHECKING

from woolly.later import later

if TYPE_CHECKING:
    from woolly.engine.multimodal.admit import look
    from woolly.engine.multimodal.encoder import SoundEncoder, Source, TextEncoder, open_encoder, source_backend
    from woolly.engine.multimodal.encoder_run import EncoderRun
    from woolly.engine.multimodal.encoder_scheduler import EncoderRequest, EncoderScheduler
    from woolly.engine.multimodal.memory import tower_bytes
    from woolly.engine.multimodal.tower import Tower, open_tower, tower_backend
    from woolly.engine.multimodal.transducer import TransducerDecoder
    from woolly.engine.multimodal.view import PlacedRows, View, has_rows, read_prompt

__all__ = [
    "EncoderRequest",
    "EncoderRun",
    "EncoderScheduler",
    "PlacedRows",
    "SoundEncoder",
    "Source",
    "TextEncoder",
    "Tower",
    "TransducerDecoder",
    "View",
    "has_rows",
    "look",
    "open_encoder",
    "open_tower",
    "read_prompt",
    "source_backend",
    "tower_backend",
    "tower_bytes",
]

__getattr__ = later(
    __name__,
    {
        "admit": "look",
        "encoder": "SoundEncoder Source TextEncoder open_encoder source_backend",
        "encoder_run": "EncoderRun",
        "encoder_scheduler": "EncoderRequest EncoderScheduler",
        "memory": "tower_bytes",
        "transducer": "TransducerDecoder",
        "tower": "Tower open_tower tower_backend",
        "view": "PlacedRows View has_rows read_prompt",
    },
)
