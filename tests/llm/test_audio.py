"""Audio of conversations: paths, bytes and arrays give the same answer, and bad ones give one sentence."""

import base64
from unittest.mock import Mock

import numpy as np
import pytest
from fastapi.testclient import TestClient

from tests.cases.audio_towers import AUDIO_TOWERS, prepared_audio, samples, write_audio_tower
from tests.cases.tiny import TINY, write_tiny
from tests.multimodal.test_audio import wav
from woolly import LLM
from woolly.chat import AudioPart, Modalities, format_chat
from woolly.chat.message import Message, TextPart
from woolly.chat.request import ChatRequest
from woolly.errors import RequestError, TemplateError
from woolly.multimodal import Audio, VisionSettings, read_audio
from woolly.multimodal.inputs import AudioInput
from woolly.multimodal.processing.audio import process_audio
from woolly.sampling import SamplingParams
from woolly.serving import Settings, create_app
from woolly.templates import ChatTemplate

HEARD = (np.round(samples(8_500) * 16384) / 32768).astype(np.float32)  # as 16 bits hold them
PARTS = (
    "{% for message in messages %}{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}"
    "{% elif part.type == 'audio' %}[<|AUDIO|>]{% elif part.type == 'image' %}<|image_pad|>{% endif %}{% endfor %}"
    "{% endfor %}"
)
PLAIN = "{% for message in messages %}{{ message.content }}{% endfor %}"
AUDIO_ONLY = Modalities(None, audio=AUDIO_TOWERS["qwen2a"].settings)
BOTH = Modalities(
    VisionSettings("image", "qwen2vl_merger", 56, 14, (0.5,) * 3, (0.5,) * 3, merge_size=2),
    audio=AUDIO_TOWERS["qwen2a"].settings,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audio")
    write_audio_tower(AUDIO_TOWERS["qwen2a"], folder / "mmproj-tiny.gguf")
    write_tiny(TINY["qwen2"], folder / "tiny.gguf")
    return folder


@pytest.fixture(scope="module")
def llm(folder):
    with LLM(folder / "tiny.gguf", ctx=512, threads=2, backend="cpu") as llm:
        yield llm


def test_paths_bytes_arrays_and_base64_give_the_same_answer(llm, tmp_path):
    file = wav(HEARD * 32768 / 32767)
    path = tmp_path / "talk.wav"
    path.write_bytes(file)
    assert np.abs(read_audio(file).samples - HEARD).max() == 0
    sources = [str(path), path, file, (HEARD, 16000)]
    options = {"max_tokens": 6, "temperature": 0.0, "ignore_eos": True, "logprobs": 1}

    def answer(talk, **more):
        made = llm.chat(talk, **options, **more)
        return made.text, tuple(one.logprob for one in made.logprobs)

    answers = {answer("What?", audio=[one]) for one in sources}
    data = {"data": base64.b64encode(file).decode(), "format": "wav"}
    for part in ({"type": "input_audio", "input_audio": data}, {"type": "audio", "audio": path}):
        talk = [{"role": "user", "content": [part, {"type": "text", "text": "What?"}]}]
        answers.add(answer(talk))
    assert len(answers) == 1
    assert answer("What?", audio=[(samples(8_500, 5), 16000)]) not in answers
    assert (
        llm.audio_tokens(Audio(HEARD))
        > AUDIO_TOWERS["qwen2a"].settings.merged_grid(prepared_audio(AUDIO_TOWERS["qwen2a"], 8_500).inputs[0].grid_thw)[
            2
        ]
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"audio": ["no/such.wav"]}, r"audio\[0\]: cannot read audio file no/such.wav"),
        (
            {"audio": [(np.zeros(100, np.float32), 16000)]},
            r"audio\[0\]: the audio has 0.006 s; expected at least 0.05 s",
        ),
        ({"audio": "talk.wav"}, "audio is of type str; expected a list of audio clips"),
        (
            {"images": [np.zeros((9, 9, 3), np.uint8)]},
            "this model does not support images: its projector .* has no tower",
        ),
    ],
)
def test_invalid_audio_is_one_sentence(llm, options, message):
    with pytest.raises(RequestError, match=message):
        llm.chat("What?", **options)


def test_model_without_audio_says_so(llm, monkeypatch):
    monkeypatch.setattr(llm, "modalities", None)
    with pytest.raises(RequestError, match=r"audio\[0\]: this model does not support audio: no projector"):
        llm.chat("What?", audio=[(HEARD, 16000)])
    with pytest.raises(RequestError, match="this model does not support audio"):
        llm.audio_tokens(Audio(HEARD))


def asked(llm, template, *parts, modalities=AUDIO_ONLY):
    request = ChatRequest((Message("user", parts),), SamplingParams())
    return format_chat(request, ChatTemplate(template), llm.tokenizer, modalities)


def test_template_shows_parts_or_the_marker_is_inserted(llm):
    audio, text = AudioPart(AudioInput((HEARD, 16000))), TextPart("say <|AUDIO|>")
    layout = asked(llm, PARTS, audio, text, audio)
    assert [layout.text[one.start : one.end] for one in layout.media] == ["<|AUDIO|>"] * 2
    assert layout.text == "[<|AUDIO|>]say <\u200b|AUDIO|>[<|AUDIO|>]"
    layout = asked(llm, PLAIN, audio, TextPart("hm"))
    assert layout.text == "<|audio_bos|><|AUDIO|><|audio_eos|>\nhm"
    assert (layout.media[0].start, layout.media[0].end) == (0, len(layout.text) - 3)


def test_images_and_audio_keep_their_order(llm):
    pytest.importorskip("PIL.Image")
    from woolly.chat import ImagePart
    from woolly.multimodal.inputs import ImageInput

    audio, image = AudioPart(AudioInput((HEARD, 16000))), ImagePart(ImageInput(np.zeros((56, 56, 3), np.uint8)))
    layout = asked(llm, PARTS, audio, image, audio, modalities=BOTH)
    assert [one.prepared.kind for one in layout.media] == ["audio", "image", "audio"]


def test_audio_hidden_by_the_template_is_an_error(llm):
    with pytest.raises(TemplateError, match="has 1 audio clips, but the model's chat template shows 0"):
        asked(llm, "{% for m in messages %}{% for p in m.content %}{{ 'audio' }}{% endfor %}{% endfor %}",
              AudioPart(AudioInput((HEARD, 16000))))  # fmt: skip


def test_audio_beyond_the_context_is_rejected_before_they_are_prepared(llm, monkeypatch):
    audio = [(samples(n), 16000) for n in (8_500, 16_000, 480_000)]
    prepared = []
    monkeypatch.setattr(
        "woolly.multimodal.process_audio", lambda *given: prepared.append(given) or process_audio(*given)
    )
    with pytest.raises(RequestError, match=r"^the audio up to audio\[2\] take 788 tokens, but the context holds 512"):
        llm.chat("What?", audio=audio)
    assert len(prepared) == 2


def test_one_hour_is_the_maximum_of_audio(llm, monkeypatch):
    monkeypatch.setattr("woolly.chat.media._MAX_SECONDS", 1)
    monkeypatch.setattr(
        "woolly.multimodal.process_audio", Mock(side_effect=[prepared_audio(AUDIO_TOWERS["qwen2a"], 8_500)])
    )
    audio = AudioPart(AudioInput((HEARD, 16000), where="audio[1]"))
    with pytest.raises(RequestError, match=r"audio\[1\]: the audio clips of the conversation have more than 0 minutes"):
        asked(llm, PARTS, audio, audio)


def test_completion_takes_audio_at_its_markers(folder):
    given = Settings(models_dir=folder, model=str(folder / "tiny.gguf"), backend="cpu", threads=1, ctx_size=256)
    data = base64.b64encode(wav(HEARD)).decode()
    with TestClient(create_app(given), base_url="http://localhost") as client:
        props = client.get("/props").json()
        assert props["modalities"] == {"vision": False, "audio": True}

        def ask(*given):
            prompt = {"prompt_string": f"Hear {props['media_marker']}?", "multimodal_data": given}
            return client.post("/completion", json={"prompt": prompt, "n_predict": 2, "temperature": 0})

        heard = [ask(one).json() for one in (data, f"data:audio/wav;base64,{data}")]
        assert len({one["content"] for one in heard}) == 1 and heard[0]["tokens_evaluated"] > 10
        refused = ask(base64.b64encode(b"\x89PNG" + bytes(20)).decode())
        assert refused.status_code == 400 and "does not support images" in refused.json()["error"]["message"]
