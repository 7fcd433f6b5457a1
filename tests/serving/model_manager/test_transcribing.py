"""Whisper next to a chat model: requests go to a model that can answer them, whatever name a client sends."""

import shutil

import pytest

from tests.cases.parakeet import write_parakeet
from tests.cases.whisper import waveform, write_whisper
from tests.multimodal.test_audio import wav
from woolly.serving.dialects.openai import audio
from woolly.serving.dialects.reply import json_reply
from woolly.serving.observability.logs import log


@pytest.fixture(scope="module")
def folder(tiny_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("both")
    shutil.copy(tiny_folder / "tiny.gguf", folder)
    write_whisper(folder / "ggml-tiny.bin")
    return folder


def _transcribe(client, path="transcriptions", **fields):
    return client.post(f"/v1/audio/{path}", data=fields, files={"file": ("talk.wav", b"an audio clip")})


def test_audio_goes_to_an_audio_model(app_with, folder, monkeypatch):
    async def answer(request, form):
        return json_reply({"model": form.model})

    monkeypatch.setattr(audio, "answer_transcription", answer)
    with app_with(models_dir=folder, model=str(folder / "tiny.gguf"), strict_models=False) as client:
        for fields in ({"model": "whisper-1"}, {}, {"model": "ggml-tiny"}):
            for path in ("transcriptions", "translations"):
                assert _transcribe(client, path, **fields).json() == {"model": "ggml-tiny"}
        said = _transcribe(client, model="whisper-1").headers["x-woolly-ignored"]
        assert said == "model (whisper-1 is not here; ggml-tiny answers)"
        reply = _transcribe(client, model="tiny")
        assert reply.status_code == 400 and "tiny does not support audio; use ggml-tiny" in reply.text


def test_every_list_shows_transcription(app_with, folder):
    with app_with(models_dir=folder) as client:
        assert _transcribe(client, model="whisper-1").status_code == 404  # --strict-models
        claims = {one["name"]: one["capabilities"] for one in client.get("/v1/models").json()["models"]}
        assert claims["ggml-tiny"] == ["transcription"] and "completion" in claims["tiny"]
        tags = {one["name"]: one["capabilities"] for one in client.get("/api/tags").json()["models"]}
        assert tags["ggml-tiny:latest"] == ["transcription"] and "completion" in tags["tiny:latest"]
        shown = client.post("/api/show", json={"model": "ggml-tiny"}).json()
        assert shown["capabilities"] == ["transcription", "audio"]
        props = client.get("/props", params={"model": "ggml-tiny"}).json()
        assert props["capabilities"] == ["transcription"] and props["modalities"]["audio"]
        google = client.get("/v1/models/ggml-tiny", headers={"x-goog-api-key": "a"}).json()
        assert google["supportedGenerationMethods"] == []


def test_parakeet_model_gives_word_times(app_with, tmp_path, caplog):
    write_parakeet(tmp_path / "ggml-parakeet-tiny.bin")
    ask = {"response_format": "verbose_json", "timestamp_granularities[]": ["word", "segment"]}
    file = {"file": ("talk.wav", wav(waveform(3.0)))}
    with app_with(models_dir=tmp_path, model=None, strict_models=False) as client:
        assert client.get("/v1/models").json()["models"][0]["capabilities"] == ["transcription"]
        reply = client.post("/v1/audio/transcriptions", data={"model": "whisper-1", **ask}, files=file).json()
        said = [word["word"] for word in reply["words"]]
        assert said == "".join(one["text"] for one in reply["segments"]).split() and said
        assert all(0 <= word["start"] <= word["end"] <= 3.0 for word in reply["words"]) and "language" not in reply
        caplog.set_level("DEBUG", logger=log.name)
        log.addHandler(caplog.handler)
        alone = ask | {"timestamp_granularities[]": "word"}
        reply = client.post("/v1/audio/transcriptions", data=alone, files=file).json()
        assert [word["word"] for word in reply["words"]] == said and "segments" not in reply
        log.removeHandler(caplog.handler)
        reported = [record for record in caplog.records if record.message in ("answered", "transcribed")]
        assert {(record.message, record.levelname) for record in reported} == {
            ("answered", "DEBUG"),
            ("transcribed", "INFO"),
        }
        assert reported[-1].seconds == 3.0 and reported[-1].segments > 0
        srt = client.post("/v1/audio/transcriptions", data={"response_format": "srt"}, files=file).text
        assert srt.startswith("1\n00:00:00,")
        for fields, says in (
            ({"language": "de"}, "do not support language"),
            ({"prompt": "Hi"}, "do not support prompt"),
        ):
            reply = client.post("/v1/audio/transcriptions", data=fields, files=file)
            assert reply.status_code == 400 and says in reply.json()["error"]["message"]


def test_model_from_the_hub_is_served(app_with, folder, tmp_path):
    (tmp_path / "hf" / "sheep" / "wool").mkdir(parents=True)
    (tmp_path / "hf" / "sheep" / "wool" / "ggml-base.bin").hardlink_to(folder / "ggml-tiny.bin")
    with app_with(models_dir=tmp_path, model=None) as client:
        assert [one["id"] for one in client.get("/v1/models").json()["data"]] == ["hf:sheep/wool/ggml-base.bin"]
