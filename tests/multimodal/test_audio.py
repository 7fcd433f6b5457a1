"""Audio input: formats, sampling rates, limits, false headers; spectrograms against transformers."""

import builtins
import io
import struct
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.cases.audio_towers import AUDIO_TOWERS, samples
from woolly.errors import RequestError
from woolly.multimodal import Audio, make_replacement, read_audio
from woolly.multimodal.audio import log_mel_whisper
from woolly.multimodal.audio.resample import resample
from woolly.multimodal.processing import audio as processing
from woolly.multimodal.processing.audio import audio_placeholders, process_audio

LONG = samples(500_001)
FRAMES = np.load(Path(__file__).parent.parent / "goldens" / "frames.npz")


def wav(values, rate=16000, coding=1, bits=16, size=None, extensible=False, before=b""):
    """Return a WAV file; `values` is [n] or [n, channels]."""
    values = np.asarray(values)
    channels = values.shape[1] if values.ndim == 2 else 1
    if coding == 3:
        data = values.astype(f"<f{bits // 8}").tobytes()
    elif bits == 8:
        data = (values * 127 + 128).astype(np.uint8).tobytes()
    else:
        whole = (values * (2 ** (bits - 1) - 1)).astype("<i8").reshape(-1)
        data = whole.view(np.uint8).reshape(-1, 8)[:, : bits // 8].tobytes()
    head = struct.pack("<HHIIHH", 0xFFFE if extensible else coding, channels, rate, 0, channels * bits // 8, bits)
    if extensible:
        head += struct.pack("<HHIH", 22, bits, 0, coding) + b"\0" * 14
    body = b"WAVE" + before + b"fmt " + struct.pack("<I", len(head)) + head
    body += b"data" + struct.pack("<I", len(data) if size is None else size) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def tone(n=3200, rate=16000, hertz=440.0):
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(n) / rate)).astype(np.float32)


@pytest.mark.parametrize(
    ("coding", "bits", "within"),
    [(1, 8, 2e-2), (1, 16, 8e-5), (1, 24, 2e-7), (1, 32, 1e-7), (3, 32, 0), (3, 64, 0)],
)
def test_wav_files_are_read_without_a_package(coding, bits, within, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "soundfile", None)
    for extensible in (False, True):
        audio = read_audio(wav(tone(), coding=coding, bits=bits, extensible=extensible, before=b"LIST\x03\0\0\0abc\0"))
        assert np.abs(audio.samples - tone()).max() <= within
    both = np.stack([tone(), np.zeros(3200)], axis=1)
    assert np.abs(read_audio(wav(both, coding=coding, bits=bits)).samples - tone() / 2).max() <= max(within, 1e-7)


def test_streamed_wav_files_are_read_to_their_end():
    for size in (0, 0xFFFFFFFF):
        assert len(read_audio(wav(tone(), size=size)).samples) == 3200


@pytest.mark.parametrize("kind", ["FLAC", "OGG", "MP3"])
def test_other_formats_are_read_by_soundfile(kind, tmp_path):
    soundfile = pytest.importorskip("soundfile")
    path = tmp_path / "audio.bin"  # known by its first bytes
    soundfile.write(path, np.stack([tone(16000)] * 2, axis=1), 16000, format=kind)
    audio = read_audio(path)
    assert abs(audio.seconds - 1) < 0.1
    assert abs(np.sqrt((audio.samples[2000:14000] ** 2).mean()) - 0.5 / np.sqrt(2)) < 0.01


def test_missing_soundfile_error_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *more):
        if name == "soundfile":
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        RequestError, match=r"FLAC files need the package soundfile: .*soundfile.*; WAV needs no package"
    ):
        read_audio(b"fLaC" + b"\0" * 60)


def test_resampling_keeps_the_tone_and_filters_aliases():
    for rate in (8000, 11025, 22050, 44100, 48000):
        got = resample(tone(rate, rate), rate, 16000)
        assert len(got) == 16000
        assert np.abs(got - tone(16000))[600:-600].max() < 2e-6
    assert np.abs(resample(tone(24000, 48000, 9000.0), 48000, 16000))[300:-300].max() < 1e-5
    np.testing.assert_array_equal(resample(tone(3000, 44100), 44100, 16000), resample(tone(3000, 44100), 44100, 16000))
    assert np.abs(resample(np.ones(5000, np.float32), 44100, 16000)[400:-400] - 1).max() < 1e-6


@pytest.mark.parametrize("key", FRAMES.files)
def test_frames_match_transformers(key):
    n_mels, n = map(int, key.split())
    frames = log_mel_whisper(samples(n), n_mels)
    assert frames.dtype == np.float32 and len(frames) == n // 160
    want = FRAMES[key]
    assert np.abs(frames[:: max(1, len(frames) // 12)] - want).max() < 1e-5


def test_arrays_need_a_rate_and_may_have_channels():
    whole = (tone() * 32767).astype(np.int16)
    for source in (
        (tone(), 16000),
        (tone().astype(np.float64), 16000),
        (np.stack([tone()] * 2, 1), 16000),
        [whole, 16000],
    ):
        assert np.abs(read_audio(source).samples - tone()).max() < 1e-4
    given = tone()
    kept = read_audio((given, 16000))
    given[:] = 0
    assert kept.samples.max() > 0.4


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"", "the audio is empty"),
        (b"\0\0\0\x20ftypM4A ....", "is an M4A file, which is not supported; convert it to WAV, FLAC or MP3"),
        (b"\x1a\x45\xdf\xa3....", "is a WebM file"),
        (b"\xff\xf1\x50\x80....", "is an AAC file"),
        (b"FORM....AIFF", "is an AIFF file"),
        (b"RIFF\0\0\0\0AVI ", "is a RIFF file"),
        (b"plain words", "not in a supported audio format; expected WAV, FLAC, MP3 or OGG"),
        (b"\0" * (64 * 2**20 + 1), "is larger than 64 MiB"),
        (b"RIFF\0\0\0\0WAVE", r"damaged WAV file \(no fmt chunk\)"),
        (b"RIFF\0\0\0\0WAVEfmt \4\0\0\0abcd", r"damaged WAV file \(truncated fmt chunk\)"),
        (wav(tone())[:3000], r"damaged WAV file \(truncated: expected 6400 bytes of samples, got 2956\)"),
        (wav(tone(), coding=7, bits=8), "WAV file with mu-law, which is not supported; save it as 16-bit PCM"),
        (wav(tone(), coding=1, bits=64), "WAV file with samples of 64 bits"),
        (wav(tone(), rate=100), "has a sampling rate of 100 Hz; expected 4000 to 384000 Hz"),
        (wav(np.zeros((10, 40))), "has 40 channels; expected 1 to 16"),
        (wav(tone(0)), "has no samples"),
        (wav(np.full(900, np.nan), coding=3, bits=32), "samples outside -1 to 1"),
        (b"fLaC" + b"\0" * 90, r"is a damaged FLAC file \((?!.* at 0x)"),  # no address in this process' memory
        ("no/such/file.wav", "cannot read audio file .*file.wav"),
        (np.zeros(9), "is a ndarray; expected a path, bytes, or an array"),
        ((np.zeros(9), "16000"), "the sampling rate of the audio is '16000'"),
        ((np.zeros(9, np.uint8), 16000), "array of uint8; expected float32 from -1 to 1, or int16"),
        ((np.zeros((2, 2, 2)), 16000), "array of shape 2 x 2 x 2"),
        ((np.zeros(4000 * 1801, np.float32), 4000), "has 1801 s at 4000 Hz, but the limit is 30 minutes"),
    ],
)
def test_invalid_audio_gives_a_one_line_error(source, message):
    with pytest.raises(RequestError, match=message) as error:
        read_audio(source)
    assert "\n" not in str(error.value) and len(str(error.value)) < 300


def test_header_that_claims_hours_is_rejected_before_decoding():
    soundfile = pytest.importorskip("soundfile")
    file = io.BytesIO()
    soundfile.write(file, tone(9000), 16000, format="FLAC")
    data = bytearray(file.getvalue())
    data[21] |= 0x0F  # the upper bits of the number of samples
    with pytest.raises(RequestError, match="the limit is 30 minutes"):
        read_audio(bytes(data))
    with pytest.raises(RequestError, match="is a damaged FLAC file"):
        read_audio(bytes(file.getvalue()[:-2000]))


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG", "MP3"])
def test_mutated_files_are_decoded_or_give_a_one_line_error(kind):
    soundfile = pytest.importorskip("soundfile")
    file = io.BytesIO()
    soundfile.write(file, tone(2000), 16000, format=kind)
    whole, random = file.getvalue(), np.random.RandomState(7)
    n_refused = 0
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(random.randint(1, 6)):
            data[random.randint(0, min(len(data), 200) if random.rand() < 0.7 else len(data))] = random.randint(256)
        if random.rand() < 0.3:
            data = data[: random.randint(1, len(data))]
        try:
            assert np.isfinite(read_audio(bytes(data)).samples).all()
        except RequestError as error:
            n_refused += 1
            assert "\n" not in str(error) and len(str(error)) < 300
    assert n_refused


@pytest.mark.parametrize("name", AUDIO_TOWERS)
def test_audio_is_laid_out_between_its_markers(name):
    tiny = AUDIO_TOWERS[name]
    prepared = process_audio(Audio(np.tile(LONG, 2) if name == "granite_speech" else LONG), tiny.settings)
    assert len(prepared.inputs) > 1
    parts = make_replacement(prepared, tiny.settings).parts
    family = tiny.settings.family
    texts = [part for part in parts if isinstance(part, str)]
    n_marked = len(prepared.inputs) if family.constants is not None else 1  # each piece, or all together
    assert "".join(texts) == (family.begin + family.end) * n_marked
    assert [part.n for part in parts if not isinstance(part, str) and part.first == 0] == [
        tiny.settings.merged_grid(piece.grid_thw)[2] for piece in prepared.inputs
    ]
    short = [process_audio(Audio(samples(3_000, seed)), tiny.settings).digest for seed in (0, 0, 1)]
    assert short[0] == short[1] != short[2]


def test_too_short_audio_is_rejected():
    with pytest.raises(RequestError, match=r"has 0\.049 s; expected at least 0\.05 s"):
        process_audio(Audio(samples(790)), AUDIO_TOWERS["qwen2a"].settings)
    for tiny in AUDIO_TOWERS.values():
        prepared = process_audio(Audio(samples(800)), tiny.settings)
        assert all(tiny.settings.merged_grid(piece.grid_thw)[2] >= 1 for piece in prepared.inputs)


@pytest.mark.parametrize("name", AUDIO_TOWERS)
def test_rows_are_counted_from_the_length_alone(name, monkeypatch):
    tiny = AUDIO_TOWERS[name].settings

    def silent(audio, n_mels):
        return np.zeros((len(audio) // 160, n_mels), np.float32)

    for module in ("ultravox", "qwen2a", "qwen2_5o", "qwen3a", "voxtral"):
        monkeypatch.setattr(f"woolly.multimodal.families.{module}.log_mel_whisper", silent)
    piece = 160 * tiny.family.max_frames
    for n in (
        800,
        959,
        960,
        961,
        8_500,
        piece - 1,
        piece,
        *(piece + k for k in (1, 160, 161, 479, 480)),
        2 * piece + 1,
    ):
        audio = Audio(np.zeros(n, np.float32))
        grids = [one.grid_thw for one in process_audio(audio, tiny).inputs]
        parts = [part for part in audio_placeholders(audio, tiny).parts if not isinstance(part, str)]
        measured = [part for part in parts if part.first == 0]  # Gemma 3n has others of its file after them
        assert [one.source.inputs[one.index].grid_thw for one in measured] == grids, n
        assert [one.n for one in measured] == [tiny.merged_grid(grid)[2] for grid in grids], n
    with pytest.raises(RequestError, match=r"expected at least 0\.05 s"):
        audio_placeholders(Audio(samples(790)), tiny)


def test_audio_preparation_shares_the_limit_of_decoded_audio(monkeypatch):
    monkeypatch.setattr(processing, "DECODE_SEMAPHORE", threading.BoundedSemaphore(1))

    def busy(audio, n_mels):
        assert not processing.DECODE_SEMAPHORE.acquire(blocking=False)
        return log_mel_whisper(audio, n_mels)

    monkeypatch.setattr("woolly.multimodal.families.ultravox.log_mel_whisper", busy)
    for tiny in AUDIO_TOWERS.values():
        process_audio(Audio(samples(3_000)), tiny.settings)
    assert processing.DECODE_SEMAPHORE.acquire(blocking=False)
