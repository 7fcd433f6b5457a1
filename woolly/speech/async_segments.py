"""Transcript segments on an event loop, in a separate file so that other programs do not import asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from woolly.speech.transcriber import DecodeRequest, Transcriber, next_step
from woolly.speech.transcript import TranscriptSegment


async def stream_segments(
    transcriber: Transcriber, run: Callable[[DecodeRequest], Awaitable[Sequence[int]]]
) -> AsyncIterator[TranscriptSegment]:
    """Yield the segments of an audio clip; await `run` for the output tokens of each decode request."""
    steps = transcriber.steps()
    written: Sequence[int] | None = None
    # On a thread, because the spectrogram of half an hour takes seconds.
    while (step := await asyncio.to_thread(next_step, steps, written)) is not None:
        written = None
        if isinstance(step, TranscriptSegment):
            yield step
        else:
            written = await run(step)
