"""OpenAI's own SDK against /v1/conversations, and against responses that continue a conversation."""

import openai
import pytest

from tests.clients.test_responses import FIELDS, connect


@pytest.fixture
def client(scripted):
    with connect(scripted) as client:
        yield client


def texts(client, id, order="asc"):
    return [item.content[0].text for item in client.conversations.items.list(id, order=order)]


def test_conversation_is_created_changed_and_deleted(client):
    made = client.conversations.create(metadata={"a": "b"}, items=[{"role": "user", "content": "One."}])
    assert (made.object, made.metadata) == ("conversation", {"a": "b"})
    assert client.conversations.retrieve(made.id) == made
    assert client.conversations.update(made.id, metadata={"c": "d"}).metadata == {"c": "d"}
    (item,) = client.conversations.items.list(made.id)
    assert (item.type, item.role, item.status, item.content[0].type) == ("message", "user", "completed", "input_text")
    gone = client.conversations.delete(made.id)
    assert gone.deleted and gone.object == "conversation.deleted"
    for call in (
        lambda: client.conversations.retrieve(made.id),
        lambda: client.conversations.items.list(made.id),
        lambda: client.responses.create(**FIELDS, conversation=made.id),
    ):
        with pytest.raises(openai.NotFoundError):
            call()


def test_items_are_paginated_added_and_removed(client):
    id = client.conversations.create().id
    added = client.conversations.items.create(id, items=[{"role": "user", "content": f"{i}"} for i in range(5)])
    assert [item.content[0].text for item in added.data] == ["0", "1", "2", "3", "4"]
    assert texts(client, id) == ["0", "1", "2", "3", "4"] and texts(client, id, "desc") == ["4", "3", "2", "1", "0"]
    page = client.conversations.items.list(id, limit=2, order="asc")
    assert page.has_more and [item.content[0].text for item in page.data] == ["0", "1"]
    assert [item.content[0].text for item in page] == ["0", "1", "2", "3", "4"]  # the SDK asks for the next ones
    first = added.data[0].id
    assert client.conversations.items.retrieve(first, conversation_id=id).content[0].text == "0"
    assert client.conversations.items.delete(first, conversation_id=id).id == id
    assert texts(client, id) == ["1", "2", "3", "4"]
    with pytest.raises(openai.NotFoundError):
        client.conversations.items.retrieve(first, conversation_id=id)
    again = {"id": added.data[1].id, "role": "user", "content": "x", "type": "message"}
    with pytest.raises(openai.BadRequestError, match=r"items\.0\.id"):
        client.conversations.items.create(id, items=[again])


@pytest.mark.parametrize("is_stream", [False, True])
def test_response_continues_a_conversation_and_is_added_to_it(client, scripted, is_stream):
    scripted.says("Two.")
    id = client.conversations.create(items=[{"role": "user", "content": "One."}]).id

    def ask(text):
        fields = {**FIELDS, "input": text}
        if not is_stream:
            return client.responses.create(**fields, conversation=id)
        *_, last = client.responses.create(**fields, conversation={"id": id}, stream=True)
        return last.response

    first = ask("And then?")
    assert first.conversation.id == id
    sent = [{"role": "user", "content": "One."}, {"role": "user", "content": "And then?"}]
    counted = client.responses.input_tokens.count(model="tiny", input=sent).input_tokens
    assert first.usage.input_tokens == counted
    assert texts(client, id) == ["One.", "And then?", "Two."]
    next_one = client.responses.input_tokens.count(model="tiny", input="More.", conversation=id).input_tokens
    assert ask("More.").usage.input_tokens == next_one > counted
    assert texts(client, id) == ["One.", "And then?", "Two.", "More.", "Two."]


def test_unstored_response_is_added_to_its_conversation(client, scripted):
    scripted.says("Two.")
    id = client.conversations.create().id
    client.responses.create(**FIELDS, conversation=id, store=False)
    assert texts(client, id) == ["hi", "Two."]


def test_conversation_answers_one_response_at_a_time(client, scripted):
    scripted.says("x" * 5000)
    id = client.conversations.create().id
    stream = client.responses.create(**FIELDS, conversation=id, stream=True)
    under_way = next(stream).response
    with pytest.raises(openai.ConflictError, match="another response in this conversation is running"):
        client.responses.create(**FIELDS, conversation=id)
    client.responses.cancel(under_way.id)
    assert [event.type for event in stream][-1] == "response.failed"
    assert texts(client, id) == []  # what was cancelled is not part of it
    scripted.says("Two.")
    client.responses.create(**FIELDS, conversation=id)
    assert texts(client, id) == ["hi", "Two."]


def test_rejected_response_leaves_its_conversation_free(client, scripted):
    scripted.says("Two.")
    id = client.conversations.create().id
    for wrong in ({"top_p": 5}, {"model": "tiny", "tool_choice": "required"}, {"input": "x" * 400_000}):
        with pytest.raises(openai.APIStatusError):
            client.responses.create(**{**FIELDS, **wrong}, conversation=id)
    assert client.responses.create(**FIELDS, conversation=id).output_text == "Two."


def test_conversation_deleted_during_an_answer_is_gone(client, scripted):
    scripted.says("y" * 300)
    id = client.conversations.create().id
    stream = client.responses.create(**FIELDS, conversation=id, stream=True)
    next(stream)
    client.conversations.delete(id)
    assert [event.type for event in stream][-1] == "response.completed"
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(id)
