"""Transcripts on an event loop. In a file of its own: a program without a loop need not load asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from woolly.llm.speech.transcriber import DecodeRequest, Transcriber, next_step
from woolly.llm.speech.transcript import TranscriptSegment


async def stream_segments(
    transcriber: Transcriber, run: Callable[[DecodeRequest], Awaitable[Sequence[int]]]
) -> AsyncIterator[TranscriptSegment]:
    """Yields the segments of an audio clip; `run` is awaited for the tokens of each answer."""
    steps = transcriber.steps()
    written: Sequence[int] | None = None
    # On another thread: the spectrogram of half an hour takes seconds.
    while (step := await asyncio.to_thread(next_step, steps, written)) is not None:
        written = None
        if isinstance(step, TranscriptSegment):
            yield step
        else:
            written = await run(step)
