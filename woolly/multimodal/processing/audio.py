"""Input features of audio clips (chunks of log-mel frames) for an audio encoder."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from woolly.errors import RequestError
from woolly.multimodal.audio import DECODE_SEMAPHORE, Audio
from woolly.multimodal.audio.chunks import MIN_SECONDS
from woolly.multimodal.audio.settings import AudioSettings
from woolly.multimodal.processed_item import EncoderInput, ProcessedItem
from woolly.multimodal.prompt_replacement import PromptReplacement, make_replacement


def process_audio(audio: Audio, settings: AudioSettings) -> ProcessedItem:
    """Return the input features of an audio clip; raise RequestError if it is too short.

    At most two threads run this.
    """
    _check_length(audio)
    with DECODE_SEMAPHORE:
        try:
            frames = [np.ascontiguousarray(one) for one in settings.family.chunks(audio, settings)]
            inputs = [EncoderInput(one, (1, 1, len(one))) for one in frames]
            return replace(ProcessedItem.of("audio", inputs), seconds=audio.seconds)
        except MemoryError:
            raise RequestError("the audio does not fit into memory; send a shorter clip") from None


def audio_placeholders(audio: Audio, settings: AudioSettings) -> PromptReplacement:
    """Return the placeholders of an audio clip, computed from its length; raise RequestError if it is too short."""
    _check_length(audio)
    inputs = [
        EncoderInput(np.broadcast_to(np.float32(0), (n, settings.n_mels)), (1, 1, n))  # takes no memory
        for n in settings.family.chunk_frames(len(audio.samples), settings)
    ]
    return make_replacement(ProcessedItem("audio", tuple(inputs), b""), settings)


def _check_length(audio: Audio) -> None:
    if audio.seconds < MIN_SECONDS:
        raise RequestError(f"the audio has {audio.seconds:.3f} s; expected at least {MIN_SECONDS} s")
