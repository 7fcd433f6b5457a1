"""Pictures in the bodies of each dialect, read as neutral parts."""

import pytest

from woolly import chat
from woolly.sampling import SamplingParams
from woolly.senses.given import GivenPicture
from woolly.serving.dialects.anthropic import messages as anthropic
from woolly.serving.dialects.completions import messages as openai
from woolly.serving.dialects.gemini import contents as gemini
from woolly.serving.dialects.ollama.bodies import ChatBody, GenerateBody
from woolly.serving.dialects.responses.items import read_items
from woolly.serving.errors import ApiError

URL = "data:image/png;base64,AAAA"


def said(messages):
    """The parts of the only message."""
    (message,) = messages
    assert message.role == "user"
    return message.content


def test_openais_image_url():
    for url in ({"url": URL}, {"url": URL, "detail": "auto"}, URL):
        parts = [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": url}]
        picture = GivenPicture(address=URL, where="messages.0.content.1.image_url")
        read = openai.read_messages([openai.Message(role="user", content=parts)])
        assert said(read) == (chat.TextPart("what?"), chat.ImagePart(picture))
    with pytest.raises(ApiError, match=r"messages\.0\.content\.0\.image_url: an object with a url"):
        openai.read_messages([openai.Message(role="user", content=[{"type": "image_url", "image_url": 3}])])


def test_the_responses_input_image():
    content = [{"type": "input_text", "text": "what?"}, {"type": "input_image", "image_url": URL}]
    picture = GivenPicture(address=URL, where="input.0.content.1.image_url")
    assert said(read_items([{"role": "user", "content": content}])) == (chat.TextPart("what?"), chat.ImagePart(picture))
    with pytest.raises(ApiError, match=r"input\.0\.content\.0\.image_url: it is missing"):
        read_items([{"role": "user", "content": [{"type": "input_image", "file_id": "x"}]}])
    with pytest.raises(ApiError, match="an image belongs into a message of the user"):
        read_items([{"role": "system", "content": [{"type": "input_image", "image_url": URL}]}])


def test_anthropics_image():
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    blocks = [{"type": "image", "source": source}, {"type": "text", "text": "what?"}]
    picture = GivenPicture(base64="AAAA", media_type="image/png", where="messages.0.content.0.source")
    read = anthropic.read_messages(None, [anthropic.Message(role="user", content=blocks)])
    assert said(read) == (chat.ImagePart(picture), chat.TextPart("what?"))
    blocks = [{"type": "image", "source": {"type": "url", "url": "https://x/a.png"}}]
    picture = GivenPicture(address="https://x/a.png", where="messages.0.content.0.source")
    assert said(anthropic.read_messages(None, [anthropic.Message(role="user", content=blocks)])) == (
        chat.ImagePart(picture),
    )
    with pytest.raises(ApiError, match=r"messages\.0\.content\.0\.source: an image needs a source"):
        blocks = [{"type": "image", "source": {"type": "file", "file_id": "x"}}]
        anthropic.read_messages(None, [anthropic.Message(role="user", content=blocks)])


def test_geminis_inline_data():
    parts = [{"inlineData": {"mimeType": "image/png", "data": "-_AA"}}, {"text": "what?"}]
    picture = GivenPicture(base64="+/AA", media_type="image/png", where="contents.0.parts.0.inlineData")
    content = gemini.Content.model_validate({"role": "user", "parts": parts})
    assert said(gemini.read_contents(None, [content])) == (chat.ImagePart(picture), chat.TextPart("what?"))
    with pytest.raises(ApiError, match="files are not kept here"):
        gemini.read_contents(None, [gemini.Content.model_validate({"parts": [{"fileData": {"fileUri": "x"}}]})])


def test_ollamas_images():
    body = ChatBody.model_validate({"model": "m", "messages": [{"role": "user", "content": "a", "images": ["AAAA"]}]})
    picture = GivenPicture(base64="AAAA", where="messages.0.images.0")
    assert said(body.to_chat(SamplingParams()).messages) == (chat.ImagePart(picture), chat.TextPart("a"))
    body = GenerateBody.model_validate({"model": "m", "prompt": "a", "images": ["AAAA", URL]})
    parts = said(body.to_chat(SamplingParams()).messages)
    assert [part.picture.base64 for part in parts[:2]] == ["AAAA", "AAAA"] and parts[1].picture.where == "images.1"
    with pytest.raises(ApiError, match="images: it is given together with raw"):
        GenerateBody.model_validate({"model": "m", "prompt": "a", "images": ["AAAA"], "raw": True}).check()


def test_text_alone_stays_one_text():
    blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert said(anthropic.read_messages(None, [anthropic.Message(role="user", content=blocks)])) == "a\nb"
    content = gemini.Content.model_validate({"role": "user", "parts": [{"text": "a"}, {"text": "b"}]})
    assert said(gemini.read_contents(None, [content])) == "a\nb"
