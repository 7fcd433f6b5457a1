"""Results of calls stand behind their calls, and nothing that was said is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from woolly.chat import Message, ToolCall
from woolly.chat.tool_results import place_results

CALLS = Message("assistant", "", calls=(ToolCall("1", "look", "{}"), ToolCall("2", "hear", "{}")))
HI, BYE, REMINDER = Message("user", "hi"), Message("user", "bye"), Message("system", "be kind")
ONE, TWO = Message("tool", "green", call_id="1"), Message("tool", "wind", call_id="2")
NO_ONE, NO_TWO = Message("tool", "no result", "look", call_id="1"), Message("tool", "no result", "hear", call_id="2")
SAID = Message("assistant", "so it is")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ([HI, CALLS, ONE, TWO, SAID, BYE], [HI, CALLS, ONE, TWO, SAID, BYE]),
        ([HI, CALLS, TWO, ONE], [HI, CALLS, ONE, TWO]),
        ([HI, CALLS, REMINDER, TWO, BYE, ONE], [HI, CALLS, ONE, TWO, REMINDER, BYE]),
        ([HI, CALLS, TWO, BYE], [HI, CALLS, NO_ONE, TWO, BYE]),
        ([HI, CALLS, SAID, BYE], [HI, CALLS, NO_ONE, NO_TWO, SAID, BYE]),
        ([HI, CALLS], [HI, CALLS]),  # its results may still come
        ([HI, CALLS, TWO], [HI, CALLS, TWO]),
        ([ONE, HI], [Message("user", "green"), HI]),
        ([HI, CALLS, ONE, TWO, SAID, ONE], [HI, CALLS, ONE, TWO, SAID, Message("user", "green")]),
        ([HI, CALLS, ONE, ONE, TWO], [HI, CALLS, ONE, TWO, Message("user", "green")]),
    ],
)
def test_results_follow_their_calls(given, wanted):
    assert place_results(given) == wanted


def test_results_without_ids_match_calls_by_name():
    heard, seen = Message("tool", "wind", "hear"), Message("tool", "green", "look")
    assert place_results([HI, CALLS, heard, seen]) == [HI, CALLS, seen, heard]
    assert place_results([HI, CALLS, Message("tool", "green"), TWO])[2:] == [Message("tool", "green"), TWO]


def test_calls_only_a_template_can_read_keep_their_results():
    calls = Message("assistant", "", more={"tool_calls": "look()"})
    assert place_results([HI, calls, ONE, BYE]) == [HI, calls, ONE, BYE]


@given(st.lists(st.sampled_from([HI, REMINDER, CALLS, ONE, TWO, SAID]), max_size=9))
def test_growing_conversation_keeps_its_prefix(messages):
    before = place_results([*messages, SAID])
    after = place_results([*messages, SAID, BYE, CALLS, TWO, ONE])
    assert after[: len(before)] == before
    said = [message.content for message in after]
    assert all(said.count(message.content) >= messages.count(message) for message in (HI, REMINDER, ONE, TWO))
