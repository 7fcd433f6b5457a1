"""Whisper matches transformers, and no row's bits depend on its batch or on the cache."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.cases.whisper import waveform, write_whisper
from woolly import LLM, AsyncLLM
from woolly.engine.multimodal import encoder_decoder
from woolly.errors import ModelError, RequestError, UnsupportedError
from woolly.gguf import open_gguf
from woolly.models import trace, trace_encoder
from woolly.multimodal import Audio, EncoderInput, Placeholder, ProcessedItem
from woolly.multimodal.audio import log_mel_whisper
from woolly.runtime import Options
from woolly.sampling import SamplingParams
from woolly.speech import TranscribeOptions, TranscriptSegment, whisper
from woolly.speech.timestamp_rules import TimestampRules
from woolly.speech.transcriber import DecodeRequest
from woolly.speech.whisper import WhisperTranscriber
from woolly.speech.whisper_tokens import WhisperTokens

GOLDEN = np.load(Path(__file__).parent.parent / "goldens" / "whisper.npz")
PROMPT = (50258, 50259, 50359, 50364, 1000, 2000, 50414)
N_NEW = 12


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_whisper(tmp_path_factory.mktemp("whisper") / "ggml-tiny.bin")


@pytest.fixture(scope="module")
def llm(path):
    with LLM(path, threads=2, kv_type="f32") as llm:
        yield llm


@pytest.fixture(scope="module")
def window():
    frames = log_mel_whisper(np.pad(waveform(), (0, 480000)), 80)
    return ProcessedItem.of("audio", [EncoderInput(np.ascontiguousarray(frames[:3000]), (1, 1, 3000))])


class Row:
    """Keeps the rows of logits that a request was chosen from."""

    def __init__(self):
        self.rows = []

    def __call__(self, ids, row):
        self.rows.append(row.copy())


def logits(llm, window, prompt=PROMPT, n=1, beside=0):
    """Return the logits after a prompt and after each output token, optionally in a batch with others."""
    kept = [Row() for _ in range(1 + beside)]
    requests = [
        DecodeRequest(
            (Placeholder(window, 0, 0, 1500), *prompt[: len(prompt) - i]), SamplingParams(max_tokens=n, temperature=0)
        )
        for i in range(1 + beside)
    ]
    requests = [
        replace(a, params=replace(a.params, logits_processors=(k,))) for a, k in zip(requests, kept, strict=True)
    ]
    for done in llm.driver.complete([[llm.decode_request(ask)] for ask in requests]):
        done.checked()
    return np.array(kept[0].rows)


def test_encoder_matches_transformers(llm, window):
    rows = llm._loaded[0].source.rows(window.inputs[0], "audio")
    want = GOLDEN["rows"]
    assert rows.shape == (1500, 32)
    assert np.linalg.norm(rows[::50] - want) < 1e-6 * np.linalg.norm(want) * 10


def test_decoder_matches_transformers(llm, window):
    want = GOLDEN["logits"]
    got = logits(llm, window)[0][::97]
    assert np.linalg.norm(got - want[-1]) < 1e-4 * np.linalg.norm(want[-1])
    first = logits(llm, window, PROMPT[:1])[0][::97]
    assert np.linalg.norm(first - want[0]) < 1e-4 * np.linalg.norm(want[0])


def test_reference_agrees(path, llm, window):
    with LLM(path, backend="reference") as other:
        want = logits(other, window)[0]
    assert np.linalg.norm(logits(llm, window)[0] - want) < 1e-5 * np.linalg.norm(want)


def test_bits_depend_neither_on_batches_nor_chunks_nor_the_cache(path, llm, window):
    want = logits(llm, window, n=3)
    np.testing.assert_array_equal(logits(llm, window, n=3), want)  # from the cache
    np.testing.assert_array_equal(logits(llm, window, n=3, beside=2), want)
    with LLM(path, threads=1, kv_type="f32", chunk=150) as other:
        np.testing.assert_array_equal(logits(other, window, n=3, beside=1), want)


def test_windows_are_transcribed_like_transformers(llm, monkeypatch):
    monkeypatch.setattr(whisper, "_MAX_NEW_TOKENS", N_NEW)
    found = llm.transcribe((waveform(), 16000), language="en", temperature=0.0, condition_on_previous_text=False)
    got = [token for segment in found.segments for token in segment.tokens]
    assert got == GOLDEN["tokens"].tolist()
    assert [len(segment.tokens) for segment in found.segments] == GOLDEN["lengths"].tolist()
    times = np.array([(segment.start, segment.end) for segment in found.segments])
    np.testing.assert_allclose(times, GOLDEN["times"], atol=1e-3)
    assert found.language == "en"
    assert found.seconds == 40.0


def test_language_is_detected(llm, monkeypatch):
    monkeypatch.setattr(whisper, "_MAX_NEW_TOKENS", 2)
    found = llm.transcribe((waveform(), 16000), temperature=0.0)
    assert found.language == llm.tokenizer.token_text(int(GOLDEN["language"]))[2:-2]


def test_window_uses_the_previous_text(llm, monkeypatch):
    monkeypatch.setattr(whisper, "_MAX_NEW_TOKENS", N_NEW)
    alone = llm.transcribe((waveform(), 16000), language="en", temperature=0.0, condition_on_previous_text=False)
    after = llm.transcribe((waveform(), 16000), language="en", temperature=0.0)
    assert alone.segments[0].tokens == after.segments[0].tokens
    assert alone.segments[-1].tokens != after.segments[-1].tokens


def test_positions_beyond_the_table_are_rejected_at_opening(path):
    with open_gguf(path) as file:
        file.overlay({"whisper.context_length": 449})
        with pytest.raises(ModelError, match="position_embd has 1948 rows; expected 1949"):
            trace(file)


def test_too_many_mel_filters_are_rejected(path, tmp_path):
    with open_gguf(path) as file:
        file.overlay({"whisper.num_mel_bins": 1 << 20})
        with pytest.raises(ModelError, match="num_mel_bins is 1048576; expected an integer from 1 to 512"):
            trace(file)
    data = bytearray(path.read_bytes()[:100])
    data[40:44] = (513).to_bytes(4, "little")
    (tmp_path / "ggml-many.bin").write_bytes(data)
    with pytest.raises(UnsupportedError, match="n_mels is 513; expected at most 512"):
        open_gguf(tmp_path / "ggml-many.bin")


def test_encoder_stages_share_the_memory_for_weights(path, monkeypatch):
    given, chosen = [], encoder_decoder.get_backend("reference")

    class Watched:
        def compile(self, plan, tensors, options):
            given.append(options.weight_memory)
            return chosen.compile(plan, tensors, options)

    monkeypatch.setattr(encoder_decoder, "get_backend", lambda name: Watched())
    with open_gguf(path) as file:
        traced = trace_encoder(file, trace(file))
        encoder_decoder.open_encoder(file, traced, "reference", Options(weight_memory=10_000), 1).close()
    assert len(given) == 2 and min(given) > 0 and 9_998 <= sum(given) <= 10_000


class Words:
    """Tokenizer with one word."""

    def encode(self, text, **options):
        return [1000] * text.count(" the")


def test_prompt_is_used_before_the_first_window(llm):
    tokens, audio, requests = WhisperTokens.of(llm.tokenizer), Audio(waveform(1)), []
    for prompt in ("", "the the"):
        options = TranscribeOptions(language="en", prompt=prompt)
        requests.append(next(WhisperTranscriber(Words(), tokens, 80, audio, options).steps()).prompt[1:])
    assert requests == [(50258,), (50361, 1000, 1000, 50258)]


def test_segments_stream_one_by_one(llm, monkeypatch):
    monkeypatch.setattr(whisper, "_MAX_NEW_TOKENS", 4)
    stream = llm.transcribe((waveform(), 16000), language="German", translate=True, temperature=0.0, stream=True)
    first = next(stream)
    assert first.start < 2
    assert first.text == llm.tokenizer.decode([token for token in first.tokens if token < 50257])
    stream.close()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"language": "klingon"}, "the language 'klingon' is not supported by this model"),
        ({"language": 5}, "language is 5; expected a code or a name"),
        ({"prompt": 5}, "prompt is 5; expected text"),
        ({"condition_on_previous_text": "no"}, "condition_on_previous_text is 'no'; expected True or False"),
        ({"translate": 1}, "translate is 1; expected True or False"),
        ({"temperature": -1}, "expected a number from 0 to 2"),
        ({"beam_size": 5}, "unknown option 'beam_size' of transcribe"),
    ],
)
def test_unsupported_options_are_rejected(llm, options, sentence):
    with pytest.raises(RequestError, match=sentence):
        llm.transcribe((waveform(1), 16000), **options)


def test_conversation_gives_a_one_line_error(llm):
    for ask in (lambda: llm.chat("Hello"), lambda: llm.chat("What is said?", audio=[(waveform(1), 16000)])):
        with pytest.raises(RequestError, match="speech-to-text model and cannot chat"):
            ask()
    with pytest.raises(RequestError, match="cannot complete text"):
        llm.generate([1, 2, 3])
    for ask in (lambda: llm.score([1, 2, 3]), lambda: llm.embed("text", pooling="mean")):
        with pytest.raises(RequestError, match="encoder-decoder model"):
            ask()


def test_english_model_neither_translates_nor_detects_a_language(llm):
    english, audio = replace(WhisperTokens.of(llm.tokenizer), languages={}), Audio(waveform(1))
    own = WhisperTranscriber(llm.tokenizer, english, 80, audio, TranscribeOptions(temperature=0.0))
    steps = own.steps()
    assert next(steps).prompt[1:] == (50258,)
    assert steps.send([50257]).prompt[1:] == (50258,)
    assert own.language == "en"
    for options, sentence in (
        ({"translate": True}, "is English-only and cannot translate"),
        ({"language": "de"}, "not supported by this model"),
    ):
        with pytest.raises(RequestError, match=sentence):
            WhisperTranscriber(llm.tokenizer, english, 80, audio, TranscribeOptions(**options))


def test_window_is_retried_at_a_higher_temperature_until_its_text_is_likely(llm):
    tokens, audio = WhisperTokens.of(llm.tokenizer), Audio(waveform(1))
    steps = WhisperTranscriber(llm.tokenizer, tokens, 80, audio, TranscribeOptions(language="en")).steps()
    next(steps)
    asked = [steps.send([50259])]
    for _ in range(2):  # one word over and over
        asked.append(steps.send([50364, *[1000] * 60, 50257]))
    assert [ask.params.temperature for ask in asked] == [0.0, 0.2, 0.4]
    assert isinstance(steps.send([50364, *range(900, 930), 50400, 50257]), TranscriptSegment)
    assert list(steps) == []


def test_timestamps_are_monotonic_and_paired(llm):
    tokens = WhisperTokens.of(llm.tokenizer)

    def allowed(*written):
        row = np.zeros(51865, np.float32)
        row[1000] = 10.0  # so likely that no time must come
        TimestampRules(tokens, 1)([50258, *written], row)
        return np.isfinite(row)

    at = tokens.timestamp_begin
    first = allowed()
    assert first.nonzero()[0].tolist() == list(range(at, at + 51))
    assert not allowed(at + 5)[at:].any()  # text comes after the first
    assert allowed(at + 5, 1000)[at:].nonzero()[0][0] == 6  # later than the first
    pair = allowed(at + 5, 1000, at + 9)
    assert not pair[: tokens.eot].any()
    assert pair[at:].nonzero()[0][0] == 9
    assert not allowed(at + 5, 1000)[tokens.suppress_tokens].any()


def test_async_transcript_is_the_same(llm, monkeypatch):
    monkeypatch.setattr(whisper, "_MAX_NEW_TOKENS", 4)
    options = {"language": "en", "temperature": 0.0}

    async def ask():
        own = AsyncLLM.__new__(AsyncLLM)
        own.llm = llm
        pieces = [one async for one in own.stream_transcript((waveform(2), 16000), **options)]
        return pieces, await own.transcribe((waveform(2), 16000), **options)

    pieces, whole = asyncio.run(ask())
    assert whole.segments == tuple(pieces)
    assert whole.segments == llm.transcribe((waveform(2), 16000), **options).segments
