"""Context edits of a request are applied, counted and named."""

import asyncio

import pytest
from pydantic import ValidationError

from woolly.serving.dialects.anthropic import routes
from woolly.serving.dialects.anthropic.context import ContextManagement, edit_messages
from woolly.serving.dialects.anthropic.messages import Message, read_messages


def turn(i, n_calls=1):
    """A question, calls with their results, and an answer."""
    yield {"role": "user", "content": f"question {i}"}
    for call in range(n_calls):
        thought = {"type": "thinking", "thinking": f"thought {i}.{call}"}
        use = {"type": "tool_use", "id": f"{i}.{call}", "name": "read" if i else "plan", "input": {"n": i}}
        yield {"role": "assistant", "content": [thought, use]}
        result = {"type": "tool_result", "tool_use_id": f"{i}.{call}", "content": f"result {i}.{call} " + 50 * "x"}
        yield {"role": "user", "content": [result]}
    yield {"role": "assistant", "content": [{"type": "thinking", "thinking": f"last thought {i}"}]}


def edited(*edits, n_turns=4):
    """Counts characters in place of tokens."""
    talk = [Message.model_validate(one) for i in range(n_turns) for one in turn(i, 2)]
    given = ContextManagement.model_validate({"edits": list(edits)})

    async def count(messages):
        return sum(len(m.text) + len(m.reasoning or "") for m in read_messages(None, messages))

    done = asyncio.run(edit_messages(given, talk, count))
    if done.n_after is not None:
        assert done.n_after == asyncio.run(count(done.messages))
    return done, read_messages(None, done.messages), read_messages(None, talk)


TOOLS = {"type": "clear_tool_uses_20250919", "trigger": {"type": "tool_uses", "value": 4}}
THOUGHTS = {"type": "clear_thinking_20251015"}
THOUSAND = {"type": "tool_uses", "value": 1000}


def test_old_tool_results_are_cleared_and_their_calls_stay():
    done, talk, before = edited(TOOLS)
    results = [m.text for m in talk if m.role == "tool"]
    assert [text.startswith("[The result") for text in results] == [True] * 5 + [False] * 3
    assert [m.calls for m in talk] == [m.calls for m in before]
    (fact,) = done.applied
    n_spared = sum(len(m.text) for m in before) - sum(len(m.text) for m in talk)
    assert fact == {"type": TOOLS["type"], "cleared_tool_uses": 5, "cleared_input_tokens": n_spared}
    assert done.n_before is not None and n_spared > 0


def test_excluded_tools_stay_and_inputs_are_cleared_on_request():
    more = {"exclude_tools": ["plan"], "clear_tool_inputs": True, "keep": {"type": "tool_uses", "value": 0}}
    done, talk, _ = edited({**TOOLS, **more})
    assert done.applied[0]["cleared_tool_uses"] == 6
    assert [call.arguments for m in talk for call in m.calls] == ['{"n": 0}'] * 2 + ["{}"] * 6
    named = {"clear_tool_inputs": ["plan"], "keep": {"type": "tool_uses", "value": 0}}
    _, talk, _ = edited({**TOOLS, **named})
    assert [call.arguments for m in talk for call in m.calls][:3] == ["{}", "{}", '{"n": 1}']


def test_calls_that_share_an_id_have_their_own_results():
    def call(name, n):
        use = {"type": "tool_use", "id": "call_0", "name": name, "input": {"n": n}}
        yield {"role": "assistant", "content": [use]}
        yield {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_0", "content": f"result {n}"}]}

    names = ("plan", "read", "read", "plan", "read")
    talk = [Message.model_validate(one) for n, name in enumerate(names) for one in call(name, n)]
    more = {"exclude_tools": ["plan"], "clear_tool_inputs": ["read"], "keep": {"type": "tool_uses", "value": 2}}

    async def count(messages):
        return len(messages)

    given = ContextManagement.model_validate({"edits": [{**TOOLS, **more}]})
    done = asyncio.run(edit_messages(given, talk, count))
    assert [one["cleared_tool_uses"] for one in done.applied] == [2]
    results = [block.content for m in done.messages for block in m.content if block.type == "tool_result"]
    assert [text.startswith("[The result") for text in results] == [False, True, True, False, False]
    uses = [block.input for m in done.messages for block in m.content if block.type == "tool_use"]
    assert uses == [{"n": 0}, {}, {}, {"n": 3}, {"n": 4}]


def test_first_of_two_results_in_one_message_belongs_to_the_first_call():
    uses = [{"type": "tool_use", "id": "same", "name": name, "input": {}} for name in ("plan", "read")]
    found = [{"type": "tool_result", "tool_use_id": "same", "content": text} for text in ("a plan", "a file")]
    talk = [{"role": "assistant", "content": uses}, {"role": "user", "content": found}]
    edit = {**TOOLS, "trigger": {"type": "tool_uses", "value": 1}, "exclude_tools": ["plan"]}

    async def count(messages):
        return len(messages)

    given = ContextManagement.model_validate({"edits": [{**edit, "keep": {"type": "tool_uses", "value": 0}}]})
    done = asyncio.run(edit_messages(given, [Message.model_validate(one) for one in talk], count))
    plan, file = done.messages[1].content
    assert plan.content == "a plan" and file.content.startswith("[The result")


@pytest.mark.parametrize(
    "more",
    [
        {"trigger": {"type": "tool_uses", "value": 8}},
        {"trigger": {"type": "input_tokens", "value": 100_000}},
        {"clear_at_least": {"type": "input_tokens", "value": 10_000}},
        {"keep": {"type": "tool_uses", "value": 8}},
    ],
)
def test_nothing_is_cleared_before_the_trigger(more):
    done, talk, before = edited({**TOOLS, **more})
    assert (done.applied, done.n_before, talk) == ((), None, before)


def test_reasoning_of_the_last_turns_stays_through_its_calls():
    more = ({"keep": {"type": "thinking_turns", "value": 3}}, 1), ({"keep": "all"}, 0), ({"keep": {"type": "all"}}, 0)
    for keep, n in (({}, 3), *more):
        done, talk, _ = edited({**THOUGHTS, **keep})
        assert [m.reasoning is not None for m in talk if m.role == "assistant"] == [False] * 3 * n + [True] * 3 * (
            4 - n
        )
        assert [one["cleared_thinking_turns"] for one in done.applied] == [n] * (n > 0)


def test_each_conversation_is_counted_once():
    counted = []

    async def count(messages):
        counted.append(messages)
        return 1000 - len(counted)

    talk = [Message.model_validate(one) for i in range(4) for one in turn(i, 2)]
    due = {"type": TOOLS["type"], "trigger": {"type": "input_tokens", "value": 300}}
    for edits, n in (([due], 2), ([THOUGHTS, due], 3), ([due, THOUGHTS], 3), ([{**due, "keep": THOUSAND}], 1)):
        counted.clear()
        done = asyncio.run(edit_messages(ContextManagement.model_validate({"edits": edits}), talk, count))
        assert len(counted) == n and done.n_after == 1000 - n


def test_conversation_is_counted_in_a_slot_and_not_for_repeated_edits(app_with, monkeypatch):
    n_held = []

    async def count(body, talk, request):
        n_held.append(request.app.state.generator.admission.n_open)
        return 0

    monkeypatch.setattr(routes, "_count", count)
    body = {"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}
    edit = {"type": TOOLS["type"]}
    with app_with() as client:
        refused, reply = (
            client.post("/v1/messages", json={**body, "context_management": {"edits": [edit] * n}}) for n in (60, 1)
        )
        assert client.app.state.generator.admission.n_open == 0
    assert (refused.status_code, reply.status_code, n_held) == (400, 200, [1])
    says = (
        "context_management.edits: clear_tool_uses_20250919 occurs more than once; send at most one edit of each type"
    )
    assert says in refused.json()["error"]["message"]


def test_edits_are_applied_in_order_and_unknown_ones_rejected():
    done, _, _ = edited(THOUGHTS, {"type": TOOLS["type"], "trigger": {"type": "input_tokens", "value": 300}})
    assert [one["type"] for one in done.applied] == [THOUGHTS["type"], TOOLS["type"]]
    with pytest.raises(ValidationError, match="clear_tool_uses_20250919"):
        edited({"type": "compact_20260112"})
