"""OpenAI's own SDK against a server with a Whisper model: each format, times, streams, and what is refused by name."""

import httpx
import openai
import pytest

from tests.cases.tiny import TINY, write_tiny
from tests.cases.whisper import waveform, write_whisper
from tests.clients.conftest import listening
from tests.multimodal.test_audio import wav
from woolly.serving import Settings, create_app
from woolly.speech import whisper

TALK = ("talk.wav", wav(waveform(34.0)))

pytestmark = pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # translations of the SDK


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("speech")
    write_whisper(folder / "ggml-tiny.bin")
    write_tiny(TINY["llama"], folder / "tiny.gguf")
    with pytest.MonkeyPatch.context() as patch, listening(create_app(_settings(folder))) as url:
        patch.setattr(whisper, "_MAX_NEW_TOKENS", 6)
        patch.setattr(whisper, "_LOGPROB_THRESHOLD", -100.0)
        patch.setattr(whisper, "_COMPRESSION_RATIO_THRESHOLD", 100.0)
        yield url


def _settings(folder):
    return Settings(models_dir=folder, batches_dir=folder / "batches", backend="cpu", threads=1)


@pytest.fixture(scope="module")
def audio(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=120) as client:
        yield client.audio


def test_each_format_has_the_transcript(audio):
    ask = {"model": "ggml-tiny", "file": TALK, "language": "en"}
    text = audio.transcriptions.create(**ask).text
    assert text
    assert audio.transcriptions.create(**ask, response_format="text").strip() == text
    verbose = audio.transcriptions.create(**ask, response_format="verbose_json", timestamp_granularities=["segment"])
    assert (verbose.text, verbose.language, verbose.duration) == (text, "english", 34.0)
    assert [one.id for one in verbose.segments] == list(range(len(verbose.segments)))
    assert "".join(one.text for one in verbose.segments).strip() == text
    both = ["word", "segment"]
    timed = audio.transcriptions.create(**ask, response_format="verbose_json", timestamp_granularities=both)
    assert [one.word for one in timed.words] == text.split() and timed.segments == verbose.segments
    srt, vtt = (audio.transcriptions.create(**ask, response_format=kind) for kind in ("srt", "vtt"))
    assert srt.startswith("1\n00:00:0") and " --> " in srt and verbose.segments[0].text.strip() in srt
    assert vtt.startswith("WEBVTT\n\n00:00:0") and "," not in vtt.splitlines()[2]


def test_stream_has_the_text_of_each_segment_and_ends_with_all_of_it(audio):
    *deltas, done = audio.transcriptions.create(model="ggml-tiny", file=TALK, language="en", stream=True)
    assert "".join(one.delta for one in deltas).strip() == done.text
    assert len(deltas) >= 2


def test_translation_is_requested_by_its_task(audio):
    verbose = audio.translations.create(model="whisper-1", file=TALK, response_format="verbose_json")
    assert verbose.language == "english" and verbose.text


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"timestamp_granularities[]": "letter", "response_format": "verbose_json"},
            "expected word, segment or both",
        ),
        ({"timestamp_granularities[]": "segment"}, "timestamps need response_format verbose_json"),
        ({"language": "klingon"}, "is not supported by this model"),
        ({"response_format": "srt", "stream": "true"}, "srt cannot be streamed"),
    ],
)
def test_unsupported_options_are_rejected_by_name(url, fields, says):
    reply = httpx.post(f"{url}/v1/audio/transcriptions", data=fields, files={"file": TALK}, timeout=60)
    assert reply.status_code == 400
    assert says in reply.json()["error"]["message"]


def test_chat_gives_a_one_line_error(url):
    body = {"model": "ggml-tiny", "messages": [{"role": "user", "content": "Hello"}]}
    reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    assert reply.status_code == 400
    assert "speech-to-text model and cannot chat" in reply.json()["error"]["message"]


def test_chat_without_a_model_name_goes_to_the_chat_model(url, audio):
    audio.transcriptions.create(model="whisper-1", file=TALK, language="en")  # used last
    for named in ({}, {"model": "gpt-4o"}, {"model": "loaded"}):
        body = {**named, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
        reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
        assert (reply.status_code, reply.json()["model"]) == (200, "tiny")
    states = {one["name"]: one["state"] for one in httpx.get(f"{url}/api/v1/models", timeout=60).json()}
    assert states == {"tiny": "ready", "ggml-tiny": "ready"}  # models of two kinds: neither makes room


def test_model_list_shows_audio_capability(url):
    models = {one["id"]: one for one in httpx.get(f"{url}/v1/models", timeout=60).json()["data"]}
    assert models["ggml-tiny"]["architecture"]["input_modalities"] == ["audio"]
    assert models["tiny"]["architecture"]["input_modalities"] == ["text"]
