"""Audio formats, detected by magic bytes, and limits that are checked before decoding."""

from __future__ import annotations

from woolly.errors import RequestError

MAX_BYTES = 64 * 2**20  # per file
MAX_SECONDS = 30 * 60
MAX_FRAMES = 90_000_000  # samples per channel: half an hour at 48 kHz, 360 MB
MAX_CHANNELS = 16
MIN_RATE, MAX_RATE = 4_000, 384_000  # samples per second

SUPPORTED = "WAV, FLAC, MP3 or OGG"
_FORMATS = ("WAV", "FLAC", "MP3", "OGG")
_WITH_AN = ("AAC", "AIFF", "AMR", "AU", "M4A", "MP4", "RF64")  # formats with the article "an"

_FIRST_BYTES = (
    (b"fLaC", "FLAC"),
    (b"OggS", "OGG"),
    (b"ID3", "MP3"),
    (b"RF64", "RF64"),
    (b"BW64", "RF64"),
    (b"FORM", "AIFF"),
    (b".snd", "AU"),
    (b"caff", "CAF"),
    (b"#!AMR", "AMR"),
    (b"wvpk", "WavPack"),
    (b"MAC ", "Monkey's Audio"),
    (b"\x1a\x45\xdf\xa3", "WebM"),
    (b"0&\xb2u", "WMA"),
    (b"MThd", "MIDI"),
    (b"\x89PNG", "PNG"),
    (b"\xff\xd8\xff", "JPEG"),
    (b"%PDF", "PDF"),
    (b"GGUF", "GGUF"),
)


def detect_format(data: bytes, name: str) -> str:
    """Return the format of a file by its magic bytes: WAV, FLAC, MP3 or OGG; raise RequestError if unsupported."""
    if len(data) > MAX_BYTES:
        raise RequestError(
            f"{name} is larger than {MAX_BYTES >> 20} MiB; send a shorter file",
            limit=MAX_BYTES,
        )
    if not data:
        raise RequestError(f"{name} is empty; expected a {SUPPORTED} file")
    kind = _kind(data)
    if kind is None:
        raise RequestError(f"{name} is not in a supported audio format; expected {SUPPORTED}")
    if kind not in _FORMATS:
        article = "an" if kind in _WITH_AN else "a"
        raise RequestError(f"{name} is {article} {kind} file, which is not supported; convert it to WAV, FLAC or MP3")
    return kind


def _kind(data: bytes) -> str | None:
    if data[:4] == b"RIFF":
        return "WAV" if data[8:12] == b"WAVE" else "RIFF"
    if data[4:8] == b"ftyp":
        return "M4A" if data[8:11] == b"M4A" else "MP4"
    for first, kind in _FIRST_BYTES:
        if data.startswith(first):
            return kind
    if len(data) > 2 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0:  # frame sync; layer 0 is AAC
        return "MP3" if data[1] & 0x06 else "AAC"
    return None


def check_bounds(n_frames: int, rate: int, n_channels: int, name: str) -> None:
    """Raise RequestError if duration, sampling rate or number of channels exceeds its limit."""
    if not MIN_RATE <= rate <= MAX_RATE:
        raise RequestError(
            f"{name} has a sampling rate of {rate} Hz; expected {MIN_RATE} to {MAX_RATE} Hz",
            limit=MAX_RATE,
            given=rate,
        )
    if not 1 <= n_channels <= MAX_CHANNELS:
        raise RequestError(f"{name} has {n_channels} channels; expected 1 to {MAX_CHANNELS}")
    if n_frames < 1:
        raise RequestError(f"{name} has no samples; send a longer clip")
    if n_frames > min(MAX_SECONDS * rate, MAX_FRAMES):
        most = min(MAX_SECONDS, MAX_FRAMES // rate) // 60
        raise RequestError(
            f"{name} has {n_frames / rate:.0f} s at {rate} Hz, but the limit is {most} minutes; split it",
            limit=min(MAX_SECONDS * rate, MAX_FRAMES),
            given=n_frames,
        )
