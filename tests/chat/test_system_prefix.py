"""The beginning of a prompt that is system prompt and tools."""

import pytest

from woolly.chat.message import Message
from woolly.chat.request import ChatRequest
from woolly.chat.system_prefix import SystemPrefix
from woolly.errors import TemplateError

SYSTEM = ("system", "Be brief. Hi means hello.")


def rendered(request):
    parts = [f"<{message.role}>{message.text.strip()}" for message in request.messages]
    return "".join([*parts, "<assistant><think>"])


def shared(*pairs, render=rendered, **options):
    request = ChatRequest(tuple(Message(role, text) for role, text in pairs), **options)
    text = rendered(request)
    return text[: SystemPrefix(request, render).length(text)]


@pytest.mark.parametrize("said", ["Why?", "a", "hi", "Hi", "", "<", "Hi means hello."])
def test_prefix_ends_before_the_first_non_system_message(said):
    begins = "<system>Be brief. Hi means hello.<user>"
    assert shared(SYSTEM, ("user", said)) == begins
    assert shared(SYSTEM, ("user", said), ("assistant", "a"), ("user", "a")) == begins
    assert shared(("user", said)) == "<user>"


def test_chat_that_starts_or_ends_with_assistant_has_a_prefix():
    assert shared(SYSTEM, ("assistant", "Hi")) == "<system>Be brief. Hi means hello.<"
    assert shared(SYSTEM, ("user", "u"), ("assistant", "a"), continue_final=True).endswith("hello.<user>")
    assert shared(SYSTEM) == "<system>Be brief. Hi means hello.<"


def test_template_error_means_no_prefix():
    def refuses(request):
        raise TemplateError("no")

    assert shared(SYSTEM, ("user", "Hi"), render=refuses) == ""
