"""TranscriptSegment and Transcript: what was said, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from woolly.errors import RequestError

_STEP = 0.02  # seconds of a token of times
_FRAMES = 2  # of the spectrogram, for each


@dataclass(frozen=True)
class TranscriptWord:
    """A word with what stands around it, such as a comma, and its time in seconds."""

    text: str
    start: float
    end: float


@dataclass(frozen=True)
class TranscriptSegment:
    """Some words, with their time in seconds from the beginning of the audio."""

    start: float
    end: float
    text: str
    tokens: tuple[int, ...]  # with those of times
    temperature: float = 0.0
    avg_logprob: float = 0.0  # of its window
    compression_ratio: float = 0.0  # of its window's text; high if it repeats itself
    no_speech_prob: float = 0.0
    seek: int = 0  # the frame that its window begins with
    words: tuple[TranscriptWord, ...] = ()  # if they were asked for, or come with the text


@dataclass(frozen=True)
class Transcript:
    """All segments of an audio clip."""

    segments: tuple[TranscriptSegment, ...]
    language: str  # a code: what was given, or heard
    seconds: float  # of the audio
    n_prompt: int = 0  # tokens that were read, with rows of the audio
    n_output: int = 0  # tokens that were written

    @property
    def text(self) -> str:
        """The words of all segments."""
        return "".join(segment.text for segment in self.segments).strip()

    @property
    def words(self) -> tuple[TranscriptWord, ...]:
        """The words of all segments, if they were asked for, or come with the text."""
        return tuple(word for segment in self.segments for word in segment.words)

    def __str__(self) -> str:
        return self.text

    def subtitles(self, kind: str) -> str:
        """The segments as a file of subtitles: "srt" or "vtt"; RequestError for another kind."""
        return subtitles(self.segments, kind)


def split_segments(
    tokens: Sequence[int], timestamp_begin: int, offset: float, n_frames: int
) -> tuple[list[tuple[float, float, tuple[int, ...]]], int]:
    """Start, end and tokens of each segment of a window, and after how many frames the next window begins.

    A window that ends within a segment, after the last pair of times, is heard again from there on.
    """
    is_time = [token >= timestamp_begin for token in tokens]
    cuts = [i + 1 for i in range(len(tokens) - 1) if is_time[i] and is_time[i + 1]]
    ends_once = is_time[-2:] == [False, True]
    if not cuts:
        times = [token for token in tokens if token >= timestamp_begin]
        seconds = n_frames * _STEP / _FRAMES
        if times and times[-1] != timestamp_begin:
            seconds = (times[-1] - timestamp_begin) * _STEP
        return [(offset, offset + seconds, tuple(tokens))], n_frames
    if ends_once:
        cuts.append(len(tokens))
    found, begin = [], 0
    for end in cuts:
        part = tuple(tokens[begin:end])
        start, stop = ((part[i] - timestamp_begin) * _STEP for i in (0, -1))
        found.append((offset + start, offset + stop, part))
        begin = end
    after = n_frames if ends_once else (tokens[begin - 1] - timestamp_begin) * _FRAMES
    return found, after if 0 < after <= n_frames else n_frames


def subtitles(segments: Sequence[TranscriptSegment], kind: str) -> str:
    """Segments as SubRip ("srt") or WebVTT ("vtt")."""
    if kind not in ("srt", "vtt"):
        raise RequestError(f"subtitles are asked for as {kind!r:.60}; srt or vtt was expected")
    mark = "," if kind == "srt" else "."
    blocks = [] if kind == "srt" else ["WEBVTT"]
    for number, one in enumerate(segments, 1):
        lines = [f"{_clock(one.start, mark)} --> {_clock(one.end, mark)}", one.text.strip().replace("-->", "->")]
        blocks.append("\n".join(lines if kind == "vtt" else [str(number), *lines]))
    return "\n\n".join(blocks) + "\n"


def _clock(seconds: float, mark: str) -> str:
    n = round(1000 * max(0.0, seconds))
    return f"{n // 3_600_000:02}:{n // 60_000 % 60:02}:{n // 1000 % 60:02}{mark}{n % 1000:03}"
