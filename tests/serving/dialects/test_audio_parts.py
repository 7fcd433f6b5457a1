"""Audio in the bodies of each dialect, read as neutral parts."""

import pytest

from tests.serving.dialects.test_image_parts import said
from woolly import chat
from woolly.errors import RequestError
from woolly.multimodal.inputs import AudioInput
from woolly.serving.dialects.completions import messages as openai
from woolly.serving.dialects.gemini import contents as gemini
from woolly.serving.dialects.responses.items import read_items
from woolly.serving.errors import ApiError

AUDIO = {"data": "AAAA", "format": "wav"}


def test_openai_input_audio_and_vllm_audio_url():
    parts = [{"type": "text", "text": "what?"}, {"type": "input_audio", "input_audio": AUDIO}]
    audio = AudioInput(base64="AAAA", where="messages.0.content.1.input_audio")
    read = openai.read_messages([openai.Message(role="user", content=parts)])
    assert said(read) == (chat.TextPart("what?"), chat.AudioPart(audio))
    url = "data:audio/wav;base64,AAAA"
    read = openai.read_messages(
        [openai.Message(role="user", content=[{"type": "audio_url", "audio_url": {"url": url}}])]
    )
    assert said(read) == (chat.AudioPart(AudioInput(url=url, where="messages.0.content.0.audio_url")),)
    for part in ({"type": "input_audio", "input_audio": 3}, {"type": "audio_url", "audio_url": 3}):
        with pytest.raises(ApiError, match=rf"messages\.0\.content\.0\.{part['type']}: expected an object with"):
            openai.read_messages([openai.Message(role="user", content=[part])])


def test_responses_input_audio():
    content = [{"type": "input_audio", "input_audio": AUDIO}, {"type": "input_text", "text": "what?"}]
    audio = AudioInput(base64="AAAA", where="input.0.content.0.input_audio")
    assert said(read_items([{"role": "user", "content": content}])) == (chat.AudioPart(audio), chat.TextPart("what?"))
    with pytest.raises(ApiError, match="an audio clip is only supported in user messages"):
        read_items([{"role": "system", "content": content}])


def test_gemini_inline_audio():
    parts = [{"inlineData": {"mimeType": "audio/mp3", "data": "-_AA"}}, {"text": "what?"}]
    audio = AudioInput(base64="+/AA", media_type="audio/mp3", where="contents.0.parts.0.inlineData")
    content = gemini.Content.model_validate({"role": "user", "parts": parts})
    assert said(gemini.read_contents(None, [content])) == (chat.AudioPart(audio), chat.TextPart("what?"))


def test_remote_audio_urls_are_never_fetched():
    with pytest.raises(RequestError, match=r"is not an audio URL; .*audio is not fetched"):
        AudioInput(url="https://example.com/a.wav", where="x").read()
    with pytest.raises(RequestError, match="the media type is 'image/png'; expected audio"):
        AudioInput(url="data:image/png;base64,AAAA").read()
