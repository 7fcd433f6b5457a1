"""OpenAI's own SDK against a server with an audio model: transcriptions, translations, and audio in chats."""

import base64
from dataclasses import replace

import httpx
import openai
import pytest

from tests.cases.audio_towers import AUDIO_TOWERS, samples, write_audio_tower
from tests.cases.tiny import TINY, write_tiny
from tests.clients.conftest import Scripted, listening
from tests.multimodal.test_audio import wav
from woolly.serving import Settings, create_app
from woolly.serving.accounts.keys_file import add_key

TALK = ("talk.wav", wav(samples(8_500)))
INSTRUCTION = (
    "Transcribe this recording word for word, in the language that is spoken. Answer with the transcript alone."
)
MAX_BODY = 1 << 17

pytestmark = pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # translations of the SDK


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("transcripts")
    for name in ("audio", "text"):
        write_tiny(TINY["qwen2"], folder / f"{name}.gguf")
    write_audio_tower(AUDIO_TOWERS["qwen2a"], folder / "mmproj-audio.gguf")
    file = folder / "keys.toml"
    given = {"anna": {"is_admin": True}, "ole": {"models": ("text",)}, "eva": {"limits": {"requests_per_day": 1}}}
    keys = {name: add_key(file, name, **{"limits": {}, **one}) for name, one in given.items()}
    settings = Settings(
        models_dir=folder, keys_file=file, usage_file=folder / "usage.db", sessions_file=folder / "sessions.db",
        batches_dir=folder / "batches", backend="cpu", threads=1, ctx_size=512, max_body=str(MAX_BODY), keep_requests=4,
    )  # fmt: skip
    app = create_app(settings)
    with listening(app) as url:
        running = Scripted(url, app)
        running.says("Wool.")
        running.keys = keys
        yield running


@pytest.fixture(scope="module")
def audio(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.keys["anna"], max_retries=0) as client:
        yield client.audio


def post(server, path, key="anna", file=TALK, **fields):
    heads = {"authorization": f"Bearer {server.keys[key]}"}
    data = {"model": "audio", **fields}
    return httpx.post(f"{server.url}/v1/audio/{path}", data=data, files={"file": file}, headers=heads, timeout=120)


@pytest.mark.parametrize("route", ["transcriptions", "translations"])
def test_each_format_has_the_text(server, audio, route):
    fields = {"model": "audio", "file": TALK}
    create = getattr(audio, route).create
    assert create(**fields).text == create(**fields, response_format="text") == "Wool."
    more = {"language": "de"} if route == "transcriptions" else {}
    verbose = create(**fields, response_format="verbose_json", **more)
    assert verbose.text == "Wool." and verbose.duration == 8_500 / 16_000 and not getattr(verbose, "segments", None)
    assert verbose.language == ("de" if more else "english")
    assert "language" not in post(server, "transcriptions", response_format="verbose_json").json()


def test_stream_adds_up_to_the_text(server, audio):
    *deltas, done = audio.transcriptions.create(model="audio", file=TALK, stream=True, response_format="text")
    assert {one.type for one in deltas} == {"transcript.text.delta"} and done.type == "transcript.text.done"
    assert "".join(one.delta for one in deltas) == done.text == "Wool."
    assert done.usage.total_tokens == done.usage.input_tokens + done.usage.output_tokens
    frames = post(server, "translations", stream="true").text.strip().split("\n\n")
    assert len(frames) > 1 and frames[-1].startswith('data: {"type":"transcript.text.done","text":"Wool."')


def test_transcript_is_a_chat_with_audio_before_the_instruction(server, audio):
    seen = []
    format_chat = server.app.state.generator.format_chat

    async def sees(chat, slot, model):
        seen.append((chat.params.temperature, (layout := await format_chat(chat, slot, model)).text))
        return layout

    server.app.state.generator.format_chat = sees
    try:
        reply = audio.transcriptions.create(model="audio", file=TALK)
        clip = {"data": base64.b64encode(TALK[1]).decode(), "format": "wav"}
        parts = [{"type": "input_audio", "input_audio": clip}, {"type": "text", "text": INSTRUCTION}]
        messages = [{"role": "user", "content": parts}]
        chat = audio._client.chat.completions.create(model="audio", messages=messages, temperature=0)
    finally:
        server.app.state.generator.format_chat = format_chat
    assert seen[0] == seen[1] and INSTRUCTION in seen[0][1]
    assert chat.choices[0].message.content == reply.text == "Wool."
    used, reported = chat.usage, reply.usage
    assert (reported.input_tokens, reported.output_tokens) == (used.prompt_tokens, used.completion_tokens)
    assert reported.type == "tokens" and reported.input_tokens > len(INSTRUCTION) + 13 and reply.finish_reason == "stop"


def test_truncated_transcript_says_so(server, audio, monkeypatch):
    generator = server.app.state.generator
    monkeypatch.setattr(generator, "_defaults", replace(generator._defaults, max_tokens=2))
    assert audio.transcriptions.create(model="audio", file=TALK).finish_reason == "length"
    *_, done = audio.transcriptions.create(model="audio", file=TALK, stream=True)
    assert (done.finish_reason, done.text, done.usage.output_tokens) == ("length", "Wo", 2)


def test_model_without_audio_is_rejected_by_name(server, audio):
    with pytest.raises(openai.BadRequestError, match="text does not support audio; use audio") as caught:
        audio.transcriptions.create(model="text", file=TALK)
    assert (caught.value.code, caught.value.param) == ("wrong_model", "model")
    timed = post(server, "transcriptions", model="text", **{"timestamp_granularities[]": "word"})
    assert "text does not support audio; use audio" in timed.text
    assert server.app.state.models.ready("text") is None  # the headers of its files say so
    audio.transcriptions.create(model="audio", file=TALK)
    llm = server.app.state.models.ready("audio").model
    modalities, llm.modalities = llm.modalities, None  # as on a GPU, which leaves the projector out
    try:
        with pytest.raises(openai.BadRequestError, match="audio does not support audio; no available model does: pull"):
            audio.translations.create(model="audio", file=TALK)
    finally:
        llm.modalities = modalities


@pytest.mark.parametrize(
    ("fields", "status", "says"),
    [
        ({"file": ("a.wav", b"")}, 400, "file: empty"),
        ({"file": ("a.wav", b"sheep")}, 400, "file: the audio is not in a supported audio format"),
        ({"file": ("a.wav", bytes(MAX_BODY))}, 413, f"the body is larger than the limit of {MAX_BODY} bytes"),
        ({"model": "none"}, 404, "unknown model 'none'"),
        ({"response_format": "srt"}, 400, "response_format: subtitles need timestamps"),
        ({"prompt": "sheep " * 400}, 400, "maximum context length is 512 tokens"),
    ],
)
def test_invalid_audio_gives_a_one_line_error(server, fields, status, says):
    reply = post(server, "transcriptions", **fields)
    assert reply.status_code == status, reply.text
    assert says in reply.json()["error"]["message"]


def test_non_form_body_error_explains_the_form(server):
    heads = {"authorization": f"Bearer {server.keys['anna']}"}
    reply = httpx.post(f"{server.url}/v1/audio/transcriptions", json={"model": "audio"}, headers=heads, timeout=120)
    assert reply.status_code == 400 and "a form (multipart/form-data) with file and model" in reply.text


def test_unknown_fields_are_reported_and_requests_are_kept_without_the_audio(server):
    reply = post(server, "transcriptions", chunking_strategy="auto", prompt="Sheep.")
    assert reply.status_code == 200 and reply.headers["x-woolly-ignored"] == "chunking_strategy"
    heads = {"authorization": f"Bearer {server.keys['anna']}"}
    kept = httpx.get(f"{server.url}/api/v1/requests/{reply.headers['x-request-id']}", headers=heads, timeout=120).json()
    assert kept["body"]["file"]["bytes"] == len(TALK[1]) and kept["body"]["prompt"] == "(6 characters)"
    assert kept["answers"][0]["prompt_tokens"] == reply.json()["usage"]["input_tokens"]


def test_key_limits_apply(server):
    assert post(server, "transcriptions", key="ole").json()["error"]["code"] == "model_not_allowed"
    assert post(server, "translations", key="eva").status_code == 200
    assert post(server, "transcriptions", key="eva").status_code == 429
    reply = httpx.post(f"{server.url}/v1/audio/transcriptions", files={"file": TALK}, timeout=120)
    assert reply.status_code == 401
