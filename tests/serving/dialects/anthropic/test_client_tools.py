"""Anthropic's client tools (bash, text_editor, memory, computer) reach the model with their arguments."""

import json

import pytest

from tests.serving.dialects.anthropic.test_messages import HI, chat

EDITOR = "str_replace_based_edit_tool"
BASH = {"type": "bash_20250124", "name": "bash"}


@pytest.mark.parametrize(
    ("spec", "names", "has", "lacks"),
    [
        (BASH, {"command", "restart"}, "bash shell", "zzz"),
        ({"type": "text_editor_20241022", "name": "str_replace_editor"}, {"new_str"}, "undo_edit", "insert_text"),
        (
            {"type": "text_editor_20250429", "name": EDITOR},
            {"view_range"},
            "create",
            "undo_edit",
        ),
        (
            {"type": "text_editor_20250728", "name": EDITOR, "max_characters": 900},
            {"insert_text"},
            "at most 900 characters",
            "undo_edit",
        ),
        ({"type": "memory_20250818", "name": "memory"}, {"old_path", "new_path"}, "rename", "undo_edit"),
        (
            {"type": "computer_20241022", "name": "computer", "display_width_px": 800, "display_height_px": 600},
            {"action", "coordinate"},
            "800 x 600",
            "scroll",
        ),
        (
            {
                "type": "computer_20251124",
                "name": "computer",
                "display_width_px": 8,
                "display_height_px": 6,
                "enable_zoom": True,
            },
            {"scroll_direction", "region"},
            "zoom",
            "zzz",
        ),
    ],
)
def test_tool_has_the_arguments_of_its_version(spec, names, has, lacks):
    (tool,) = chat(tools=[spec]).tools.tools
    text = json.dumps([tool.description, tool.parameters])
    assert tool.name == spec["name"] and names <= tool.parameters["properties"].keys()
    assert has in text and lacks not in text


def test_required_client_tool_is_called(client):
    body = {"model": "tiny", "max_tokens": 300, "messages": [HI], "tools": [BASH], "tool_choice": {"type": "any"}}
    reply = client.post("/v1/messages", json={**body, "temperature": 0})
    assert reply.status_code == 200 and "tools" not in reply.headers.get("x-woolly-ignored", ""), reply.text
    (call,) = [block for block in reply.json()["content"] if block["type"] == "tool_use"]
    assert call["name"] == "bash" and call["input"].keys() <= {"command", "restart"}


def test_earlier_calls_of_client_tools_are_read():
    use = {"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {"command": "ls"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "a.txt"}
    messages = [HI, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    read = chat(messages=messages, tools=[BASH])
    assert read.messages[1].calls[0].name == "bash" and read.messages[2].text == "a.txt"


def test_tools_of_anthropics_servers_are_reported(client):
    for kind in ("web_search_20250305", "code_execution_20250825", "tool_search_tool_regex_20251119"):
        body = {"model": "tiny", "max_tokens": 1, "messages": [HI], "tools": [{"type": kind, "name": "x"}]}
        reply = client.post("/v1/messages", json=body)
        assert f"{kind[:40]} runs on Anthropic's servers only" in reply.headers["x-woolly-ignored"]
