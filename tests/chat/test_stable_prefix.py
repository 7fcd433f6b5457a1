"""Length of the prompt prefix that stays fixed while a message is being typed."""

import pytest

from tests.cases.tiny import byte_vocabulary
from woolly.chat import ChatRequest, Message, format_chat
from woolly.chat.message import TextPart
from woolly.chat.stable_prefix import stable_prefix, with_other_ending
from woolly.errors import RequestError
from woolly.templates import ChatTemplate
from woolly.tokens import Tokenizer

TRIMMED = "{% for message in messages %}<{{ message.role }}>{{ message.content | trim }}</>{% endfor %}<assistant>"


def settled_text(content, template=TRIMMED, before=()):
    tokenizer = Tokenizer.from_metadata(byte_vocabulary())
    request = ChatRequest((*before, Message("user", content)))
    layouts = [format_chat(one, ChatTemplate(template), tokenizer) for one in (request, with_other_ending(request))]
    return stable_prefix(*layouts).text


@pytest.mark.parametrize(
    ("content", "stays"),
    [
        ("Tell me about wool", "<user>Tell me about "),  # "wool" may become "woolly"
        ("Tell me about wool ", "<user>Tell me about wool"),  # the template leaves the space out
        ("Tell me about wool.\n\nAnd", "<user>Tell me about wool.\n\n"),
        ("Tell", "<user>"),
        ("", "<user>"),
        ("羊" * 40, "<user>" + "羊" * 16),
    ],
)
def test_all_but_the_last_word_is_stable(content, stays):
    assert settled_text(content) == stays


def test_turns_before_the_message_are_stable():
    before = (Message("user", "Hi"), Message("assistant", "Hello."))
    assert settled_text("And n", before=before) == "<user>Hi</><assistant>Hello.</><user>And "


def test_template_that_shows_the_last_message_first_keeps_what_precedes_it():
    template = "<{{ messages[-1].content }}>" + TRIMMED
    assert settled_text("Tell me", template) == "<Tell "


def test_last_part_of_a_message_is_continued():
    assert "Tell me more" not in settled_text((TextPart("Tell me more"),), "{{ messages[0].content[0].text }}")
    (first, second) = (
        with_other_ending(ChatRequest((Message("user", (TextPart("one two"), TextPart("three four"))),)))
        .messages[0]
        .parts
    )
    assert first.text == "one two" and second.text.startswith("three ") and "four" not in second.text


@pytest.mark.parametrize("messages", [(), (Message("user", "Hi"), Message("assistant", "Hello."))])
def test_conversation_without_user_at_the_end_is_rejected(messages):
    with pytest.raises(RequestError, match="the message that the user is writing was expected"):
        with_other_ending(ChatRequest(messages))
