"""Images in the bodies of each dialect, read as neutral parts."""

import base64

import pytest

from woolly import chat
from woolly.multimodal.inputs import FileInput, ImageInput
from woolly.sampling import SamplingParams
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


def test_openai_image_url():
    for url in ({"url": URL}, {"url": URL, "detail": "auto"}, URL):
        parts = [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": url}]
        image = ImageInput(url=URL, where="messages.0.content.1.image_url")
        read = openai.read_messages([openai.Message(role="user", content=parts)])
        assert said(read) == (chat.TextPart("what?"), chat.ImagePart(image))
    with pytest.raises(ApiError, match=r"messages\.0\.content\.0\.image_url: expected an object with a url"):
        openai.read_messages([openai.Message(role="user", content=[{"type": "image_url", "image_url": 3}])])


def test_responses_input_image():
    content = [{"type": "input_text", "text": "what?"}, {"type": "input_image", "image_url": URL}]
    image = ImageInput(url=URL, where="input.0.content.1.image_url")
    assert said(read_items([{"role": "user", "content": content}])) == (chat.TextPart("what?"), chat.ImagePart(image))
    with pytest.raises(ApiError, match=r"input\.0\.content\.0\.image_url: missing"):
        read_items([{"role": "user", "content": [{"type": "input_image", "file_id": "x"}]}])
    with pytest.raises(ApiError, match="only supported in user messages"):
        read_items([{"role": "system", "content": [{"type": "input_image", "image_url": URL}]}])


def test_anthropic_image():
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    blocks = [{"type": "image", "source": source}, {"type": "text", "text": "what?"}]
    image = ImageInput(base64="AAAA", media_type="image/png", where="messages.0.content.0.source")
    read = anthropic.read_messages(None, [anthropic.Message(role="user", content=blocks)])
    assert said(read) == (chat.ImagePart(image), chat.TextPart("what?"))
    blocks = [{"type": "image", "source": {"type": "url", "url": "https://x/a.png"}}]
    image = ImageInput(url="https://x/a.png", where="messages.0.content.0.source")
    assert said(anthropic.read_messages(None, [anthropic.Message(role="user", content=blocks)])) == (
        chat.ImagePart(image),
    )
    with pytest.raises(ApiError, match=r"messages\.0\.content\.0\.source: expected a source of type"):
        blocks = [{"type": "image", "source": {"type": "file", "file_id": "x"}}]
        anthropic.read_messages(None, [anthropic.Message(role="user", content=blocks)])


def test_gemini_inline_data():
    parts = [{"inlineData": {"mimeType": "image/png", "data": "-_AA"}}, {"text": "what?"}]
    image = ImageInput(base64="+/AA", media_type="image/png", where="contents.0.parts.0.inlineData")
    content = gemini.Content.model_validate({"role": "user", "parts": parts})
    assert said(gemini.read_contents(None, [content])) == (chat.ImagePart(image), chat.TextPart("what?"))
    with pytest.raises(ApiError, match="stored files are not supported"):
        gemini.read_contents(None, [gemini.Content.model_validate({"parts": [{"fileData": {"fileUri": "x"}}]})])


def test_ollama_images():
    body = ChatBody.model_validate({"model": "m", "messages": [{"role": "user", "content": "a", "images": ["AAAA"]}]})
    image = ImageInput(base64="AAAA", where="messages.0.images.0")
    assert said(body.to_chat(SamplingParams()).messages) == (chat.ImagePart(image), chat.TextPart("a"))
    body = GenerateBody.model_validate({"model": "m", "prompt": "a", "images": ["AAAA", URL]})
    parts = said(body.to_chat(SamplingParams()).messages)
    assert [part.image.base64 for part in parts[:2]] == ["AAAA", "AAAA"] and parts[1].image.where == "images.1"
    for data, of in ((b"%PDF-1.7 and so on", chat.FilePart), (b"\x00\x00\x00\x20ftypisom", chat.VideoPart)):
        plain = base64.b64encode(data).decode()
        body = GenerateBody.model_validate({"model": "m", "prompt": "a", "images": [plain, "no base64!"]})
        part, other, _ = said(body.to_chat(SamplingParams()).messages)
        given = part.file if of is chat.FilePart else part.video
        assert isinstance(part, of) and (given.data, given.where) == (plain, "images.0")
        assert isinstance(other, chat.ImagePart)
    with pytest.raises(ApiError, match="images: cannot be combined with raw"):
        GenerateBody.model_validate({"model": "m", "prompt": "a", "images": ["AAAA"], "raw": True}).check()


def test_text_only_content_stays_one_text():
    blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert said(anthropic.read_messages(None, [anthropic.Message(role="user", content=blocks)])) == "a\nb"
    content = gemini.Content.model_validate({"role": "user", "parts": [{"text": "a"}, {"text": "b"}]})
    assert said(gemini.read_contents(None, [content])) == "a\nb"


PDF = "data:application/pdf;base64,AAAA"


def test_files_of_every_dialect():
    read = openai.read_messages(
        [openai.Message(role="user", content=[{"type": "file", "file": {"filename": "a.pdf", "file_data": PDF}}])]
    )
    place = "messages.0.content.0.file.file_data"
    assert said(read) == (chat.FilePart(FileInput(data=PDF, name="a.pdf", where=place)),)
    text = "data:text/plain;base64,aGk="
    read = openai.read_messages([openai.Message(role="user", content=[{"type": "file", "file": {"file_data": text}}])])
    assert said(read) == (chat.TextPart("hi"),)
    (part,) = said(read_items([{"role": "user", "content": [{"type": "input_file", "file_data": PDF}]}]))
    assert part == chat.FilePart(FileInput(data=PDF, where="input.0.content.0.file_data"))
    source = {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}
    blocks = [{"type": "document", "title": "a.pdf", "source": source}]
    (part,) = said(anthropic.read_messages(None, [anthropic.Message(role="user", content=blocks)]))
    given = FileInput(data="AAAA", media_type="application/pdf", name="a.pdf", where="messages.0.content.0.source")
    assert part == chat.FilePart(given)
    parts = [{"inlineData": {"mimeType": "application/pdf", "data": "-_AA"}}]
    (part,) = said(gemini.read_contents(None, [gemini.Content.model_validate({"parts": parts})]))
    assert part.file == FileInput(data="+/AA", media_type="application/pdf", where="contents.0.parts.0.inlineData")


def test_remote_files_are_named_by_their_urls():
    """Fetching is decided when the conversation is laid out."""
    url = "https://example.com/a.pdf"
    (part,) = said(read_items([{"role": "user", "content": [{"type": "input_file", "file_url": url}]}]))
    assert part == chat.FilePart(FileInput(data=url, where="input.0.content.0.file_url"))
    blocks = [{"type": "document", "title": "b", "source": {"type": "url", "url": url}}]
    (part,) = said(anthropic.read_messages(None, [anthropic.Message(role="user", content=blocks)]))
    assert part == chat.FilePart(FileInput(data=url, name="b", where="messages.0.content.0.source"))


def test_files_stored_elsewhere_are_rejected_by_name():
    with pytest.raises(ApiError, match=r"messages\.0\.content\.0\.file\.file_id: stored files are not supported"):
        openai.read_messages([openai.Message(role="user", content=[{"type": "file", "file": {"file_id": "f"}}])])
    with pytest.raises(ApiError, match=r"messages\.0\.content\.0\.file: expected an object with file_data"):
        openai.read_messages([openai.Message(role="user", content=[{"type": "file", "file": 3}])])
    for name, said in (("file_id", "stored files are not supported"), ("file_url", r"expected an http\(s\) address")):
        with pytest.raises(ApiError, match=rf"input\.0\.content\.0\.{name}: {said}"):
            read_items([{"role": "user", "content": [{"type": "input_file", name: "x"}]}])
    with pytest.raises(ApiError, match="a file is only supported in user messages"):
        read_items([{"role": "system", "content": [{"type": "input_file", "file_data": PDF}]}])
    for source in ({"type": "url", "url": "file:///etc/passwd"}, {"type": "file", "file_id": "x"}):
        with pytest.raises(ApiError, match=r"messages\.0\.content\.0\.source: stored files are not supported"):
            blocks = [{"type": "document", "source": source}]
            anthropic.read_messages(None, [anthropic.Message(role="user", content=blocks)])
