"""Images in a conversation: how templates show them, and their places in the prompt."""

import base64
import weakref
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest

from tests.cases.tiny import byte_vocabulary
from woolly import multimodal
from woolly.chat import ChatRequest, ImagePart, Message, Modalities, TextPart, format_chat, render_prompt
from woolly.chat.compaction import compaction_request, without_oldest
from woolly.chat.message import read_messages
from woolly.errors import RequestError, TemplateError
from woolly.multimodal import VisionSettings
from woolly.multimodal.inputs import ImageInput
from woolly.templates import ChatTemplate
from woolly.tokens import Tokenizer

PARTS = (
    "{% for message in messages %}{{ message.role }}: {% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}{% if part.type == 'image' %}<start_of_image>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
)
TURNS = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
VISION = Modalities(VisionSettings("image", "gemma3", 56, 14, (0.5,) * 3, (0.5,) * 3, merge_size=4))
QWEN = Modalities(VisionSettings("image", "qwen2vl_merger", 56, 14, (0.5,) * 3, (0.5,) * 3, merge_size=2))


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_metadata(byte_vocabulary())


def image(value, where=""):
    return ImagePart(ImageInput(np.full((56, 56, 3), value, np.uint8), where=where))


def shade(seen):
    (encoder_input,) = seen.prepared.inputs
    return round((float(encoder_input.values.max()) * 0.5 + 0.5) * 255)


def asked(*parts, role="user"):
    return ChatRequest((Message(role, parts),))


def test_template_shows_images_in_place(tokenizer):
    request = asked(TextPart("a"), image(1), TextPart("b"), image(2))
    layout = format_chat(request, ChatTemplate(PARTS), tokenizer, VISION)
    assert layout.text == "user: a<start_of_image>b<start_of_image>"
    assert [layout.text[one.start : one.end] for one in layout.media] == ["<start_of_image>"] * 2
    assert [shade(one) for one in layout.media] == [1, 2]
    assert render_prompt(request, ChatTemplate(PARTS), tokenizer, VISION) == layout.text


def test_text_only_template_gets_the_image_marker(tokenizer):
    layout = format_chat(asked(image(1), TextPart("what?")), ChatTemplate(TURNS), tokenizer, QWEN)
    assert layout.text == "user: <|vision_start|><|image_pad|><|vision_end|>\nwhat?\n"
    (one,) = layout.media
    assert layout.text[one.start : one.end] == "<|vision_start|><|image_pad|><|vision_end|>"


def test_image_marker_typed_by_a_user_is_no_image(tokenizer):
    request = ChatRequest(
        (Message("user", "a <start_of_image> b"), Message("user", (TextPart("<start_of_image>"), image(3))))
    )
    layout = format_chat(request, ChatTemplate(PARTS), tokenizer, VISION)
    (one,) = layout.media
    assert shade(one) == 3 and one.start == layout.text.rindex("<start_of_image>")
    alone = format_chat(asked(TextPart("<start_of_image>")), ChatTemplate(PARTS), tokenizer, VISION)
    assert alone.text == "user: <start_of_image>" and alone.media == ()  # nothing changes without images
    whole = "<|vision_start|><|image_pad|><|vision_end|>"  # a mark with a shorter one in it
    layout = format_chat(asked(image(3), TextPart(whole)), ChatTemplate(TURNS), tokenizer, QWEN)
    assert [one.start for one in layout.media] == [len("user: ")]


def test_mismatched_sizes_of_a_file_give_a_one_line_error(tokenizer):
    odd = Modalities(VisionSettings("image", "gemma3", 31, 4, (0.5,) * 3, (0.5,) * 3, merge_size=4))
    with pytest.raises(RequestError, match=r"does not fit the tower, whose file may be damaged .a grid of 7 x 7"):
        format_chat(asked(image(1)), ChatTemplate(PARTS), tokenizer, odd)


def test_model_without_a_projector_says_what_is_missing(tokenizer):
    with pytest.raises(RequestError, match="this model does not support images: no projector") as error:
        format_chat(asked(image(1, "messages.0.content.0")), ChatTemplate(PARTS), tokenizer)
    assert error.value.field == "messages.0.content.0"
    assert str(error.value).startswith("messages.0.content.0: ")


def test_template_that_drops_an_image_is_not_used(tokenizer):
    hides = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    request = ChatRequest((Message("user", "hi"), Message("assistant", (image(1),))))
    with pytest.raises(TemplateError, match="has 1 images, but the model's chat template shows 0"):
        format_chat(request, ChatTemplate(hides), tokenizer, VISION)


def test_library_messages_contain_images(tokenizer, tmp_path):
    images = pytest.importorskip("PIL.Image")
    file = BytesIO()
    images.new("RGB", (2, 1), (9, 8, 7)).save(file, "PNG")
    path = tmp_path / "a.png"
    path.write_bytes(file.getvalue())
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    parts = [
        {"type": "image", "image": path},
        {"type": "image", "image": file.getvalue()},
        {"type": "image", "image": images.open(path)},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "what?"},
    ]
    request = ChatRequest(read_messages([{"role": "user", "content": parts}]))
    layout = format_chat(request, ChatTemplate(PARTS), tokenizer, VISION)
    assert len({one.prepared.digest for one in layout.media}) == 1 and len(layout.media) == 4
    assert layout.text == "user: " + "<start_of_image>" * 4 + "what?"


def test_bad_image_error_names_its_field(tokenizer):
    request = asked(ImagePart(ImageInput(url="file:///etc/passwd", where="messages.3.content.1.image_url")))
    with pytest.raises(RequestError) as error:
        format_chat(request, ChatTemplate(PARTS), tokenizer, VISION)
    assert str(error.value) == (
        "messages.3.content.1.image_url: file: URLs are not supported; send the image as a data: URL"
    )
    assert error.value.field == "messages.3.content.1.image_url"


def test_image_is_freed_before_the_next_is_read(tokenizer, monkeypatch):
    kept = []
    read = ImageInput.read

    def watched(self, **options):
        assert all(one() is None for one in kept)
        image = read(self, **options)
        kept.append(weakref.ref(image.pixels))
        return image

    monkeypatch.setattr(ImageInput, "read", watched)
    layout = format_chat(asked(image(1), image(2), image(3)), ChatTemplate(PARTS), tokenizer, VISION)
    assert len(kept) == 3 and all(one() is None for one in kept) and len(layout.media) == 3


def test_compaction_reads_each_image_once(tokenizer, monkeypatch):
    n_read, read = [], ImageInput.read
    monkeypatch.setattr(ImageInput, "read", lambda self, **options: n_read.append(1) or read(self, **options))
    turns = [Message("user", (image(i),)) for i in range(1, 7)]
    request, shades = compaction_request(ChatRequest(tuple(turns)), 8), []
    while (left := without_oldest(request.messages)) is not None:
        request = replace(request, messages=left)
        shades.append([shade(one) for one in format_chat(request, ChatTemplate(PARTS), tokenizer, VISION).media])
    assert shades == [[1, 4, 5, 6], [1, 5, 6], [1, 6], [1]] and len(n_read) == 4
    # Another tower reads them anew.
    other = replace(VISION, vision=replace(VISION.vision, mean=(0.4,) * 3))
    format_chat(request, ChatTemplate(PARTS), tokenizer, other)
    assert len(n_read) == 5


def test_images_of_a_conversation_are_limited_together(tokenizer, monkeypatch):
    template = ChatTemplate(PARTS)
    unread = ImagePart(ImageInput(url="file:///none"))
    for call in (format_chat, render_prompt):
        with pytest.raises(
            RequestError, match=r"^the conversation has 65 images, and at most 64 are allowed; send fewer$"
        ):
            call(asked(*[unread] * 65), template, tokenizer, VISION)
    monkeypatch.setattr("woolly.chat.media._MAX_PIXELS", 2 * 56 * 56)
    assert len(format_chat(asked(*[image(1)] * 2), template, tokenizer, VISION).media) == 2
    with pytest.raises(RequestError, match=r"^images\[2\]: the images of the conversation have more than"):
        format_chat(asked(image(1), image(1), image(1, "images[2]")), template, tokenizer, VISION)


def test_prompt_is_rendered_without_decoding_images(tokenizer):
    request = asked(TextPart("a"), ImagePart(ImageInput(url="https://example.com/a.png")))
    assert render_prompt(request, ChatTemplate(PARTS), tokenizer, VISION) == "user: a<start_of_image>"


def test_unsupported_image_error_names_its_field(tokenizer):
    thin = ImagePart(ImageInput(np.zeros((1, 300, 3), np.uint8), where="images[0]"))
    with pytest.raises(RequestError, match=r"^images\[0\]: the image has 300 x 1 pixels"):
        format_chat(asked(thin), ChatTemplate(TURNS), tokenizer, QWEN)


def test_images_too_large_for_the_context_are_rejected_before_preparation(tokenizer, monkeypatch):
    """An image of 56 x 56 is one row of this tower: four of them do not fit beside a token of text."""
    small, prepared = replace(VISION, ctx=4), []
    whole = multimodal.process_image
    monkeypatch.setattr(multimodal, "process_image", lambda *a: prepared.append(1) or whole(*a))
    parts = [image(1, f"images[{i}]") for i in range(6)]
    assert len(format_chat(asked(*parts[:3]), ChatTemplate(PARTS), tokenizer, small).media) == 3
    prepared.clear()
    with pytest.raises(
        RequestError, match=r"^the images up to images\[3\] take 4 tokens, but the context holds 4, of which"
    ) as no:
        format_chat(asked(*parts), ChatTemplate(PARTS), tokenizer, small)
    assert len(prepared) == 3 and (no.value.code, no.value.limit, no.value.given) == ("context_length", 4, 4)
