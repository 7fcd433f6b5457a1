"""Transcript with timed segments and words, and subtitles (SubRip, WebVTT)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from woolly.errors import RequestError

_TIME_PRECISION = 0.02  # seconds per timestamp token
_FRAMES_PER_TIMESTAMP = 2  # mel frames


@dataclass(frozen=True)
class TranscriptWord:
    """Word with its punctuation, and its times in seconds."""

    text: str
    start: float
    end: float


@dataclass(frozen=True)
class TranscriptSegment:
    """Segment of a transcript, with times in seconds from the start of the audio."""

    start: float
    end: float
    text: str
    tokens: tuple[int, ...]  # including timestamp tokens
    temperature: float = 0.0
    avg_logprob: float = 0.0  # average of the window
    compression_ratio: float = 0.0  # compression ratio of the window's text; high if the text is repetitive
    no_speech_prob: float = 0.0
    seek: int = 0  # first mel frame of the window
    words: tuple[TranscriptWord, ...] = ()  # with word_timestamps, and always for Parakeet


@dataclass(frozen=True)
class Transcript:
    """Transcript of an audio clip."""

    segments: tuple[TranscriptSegment, ...]
    language: str  # code of the given or detected language
    seconds: float  # duration of the audio
    n_prompt: int = 0  # prompt tokens, including encoder rows
    n_output: int = 0  # output tokens

    @property
    def text(self) -> str:
        """Text of all segments."""
        return "".join(segment.text for segment in self.segments).strip()

    @property
    def words(self) -> tuple[TranscriptWord, ...]:
        """Words of all segments, if available."""
        return tuple(word for segment in self.segments for word in segment.words)

    def __str__(self) -> str:
        return self.text

    def subtitles(self, kind: str) -> str:
        """Return the segments as subtitles in the format "srt" or "vtt"; raise RequestError for another format."""
        return subtitles(self.segments, kind)


def split_segments(
    tokens: Sequence[int], timestamp_begin: int, offset: float, n_frames: int
) -> tuple[list[tuple[float, float, tuple[int, ...]]], int]:
    """Return (start, end, tokens) of each segment of a window, and the mel frames until the next window.

    If the window ends within a segment, the next window begins after the last pair of timestamps.
    """
    is_time = [token >= timestamp_begin for token in tokens]
    cuts = [i + 1 for i in range(len(tokens) - 1) if is_time[i] and is_time[i + 1]]
    ends_once = is_time[-2:] == [False, True]
    if not cuts:
        times = [token for token in tokens if token >= timestamp_begin]
        seconds = n_frames * _TIME_PRECISION / _FRAMES_PER_TIMESTAMP
        if times and times[-1] != timestamp_begin:
            seconds = (times[-1] - timestamp_begin) * _TIME_PRECISION
        return [(offset, offset + seconds, tuple(tokens))], n_frames
    if ends_once:
        cuts.append(len(tokens))
    found, begin = [], 0
    for end in cuts:
        part = tuple(tokens[begin:end])
        start, stop = ((part[i] - timestamp_begin) * _TIME_PRECISION for i in (0, -1))
        found.append((offset + start, offset + stop, part))
        begin = end
    after = n_frames if ends_once else (tokens[begin - 1] - timestamp_begin) * _FRAMES_PER_TIMESTAMP
    return found, after if 0 < after <= n_frames else n_frames


def subtitles(segments: Sequence[TranscriptSegment], kind: str) -> str:
    """Return segments as SubRip ("srt") or WebVTT ("vtt")."""
    if kind not in ("srt", "vtt"):
        raise RequestError(f"unknown subtitle format {kind!r:.60}; expected srt or vtt")
    mark = "," if kind == "srt" else "."
    blocks = [] if kind == "srt" else ["WEBVTT"]
    for number, one in enumerate(segments, 1):
        lines = [f"{_clock(one.start, mark)} --> {_clock(one.end, mark)}", one.text.strip().replace("-->", "->")]
        blocks.append("\n".join(lines if kind == "vtt" else [str(number), *lines]))
    return "\n\n".join(blocks) + "\n"


def _clock(seconds: float, mark: str) -> str:
    n = round(1000 * max(0.0, seconds))
    return f"{n // 3_600_000:02}:{n // 60_000 % 60:02}:{n // 1000 % 60:02}{mark}{n % 1000:03}"
