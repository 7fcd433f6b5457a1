"""The beginning of a prompt that is system prompt and tools."""

from woolly.chat.beginning import shared_length
from woolly.chat.message import Message

TEXT = "<s>Be brief. Hi means hello.<u>Hi<a>Hello. Hi!<u>Why?<a>"


def said(*pairs):
    return [Message(role, text) for role, text in pairs]


def test_it_ends_before_the_first_message_that_is_not_the_systems():
    system, talk = (
        ("system", "Be brief. Hi means hello."),
        [("user", "Hi"), ("assistant", "Hello. Hi!"), ("user", "Why?")],
    )
    assert TEXT[: shared_length(TEXT, said(system, *talk))] == "<s>Be brief. Hi means hello.<u>"
    assert shared_length(TEXT, said(*talk)) == TEXT.index("Hi<a>")


def test_what_the_template_writes_otherwise_and_no_message_at_all_are_no_beginning():
    assert shared_length(TEXT, said(("system", "Be brief."), ("user", "HI"))) == 0
    assert shared_length(TEXT, said(("system", "Be brief."))) == shared_length("", []) == 0
