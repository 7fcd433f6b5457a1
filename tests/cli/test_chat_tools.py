"""`woolly chat --mcp`: calls are shown, approved, run, and answered."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cases.tiny import TINY, write_tiny
from tests.cli.terminal import woolly
from woolly import LLM, SamplingParams
from woolly.chat import ToolCall
from woolly.cli.chat import chat as chat_module
from woolly.cli.chat.chat import Chat
from woolly.cli.chat.conversation import Conversation
from woolly.cli.chat.tools import open_tools
from woolly.errors import RequestError, ToolError
from woolly.mcp import Approvals

SERVER = str(Path(__file__).parents[1] / "mcp" / "server.py")
TEMPLATE = (
    "{# <tool_call></tool_call> #}{{ tools }}{% for message in messages %}{{ message.role + ':' + message.content }}"
    "{{ message.tool_calls | tojson if message.tool_calls }}{{ '\n' }}{% endfor %}"
)


def wanted(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny(replace(TINY["llama"], context=16384), tmp_path_factory.mktemp("tools") / "tiny.gguf")


@pytest.fixture(scope="module")
def llm(model):
    with LLM(model, threads=1, chat_template=TEMPLATE) as llm:
        yield llm


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("mcp") / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"zoo": {"command": sys.executable, "args": [SERVER]}}}))
    return path


@pytest.fixture(scope="module")
def questions():
    return []


@pytest.fixture(scope="module")
def replies():
    return []


@pytest.fixture(scope="module")
def opened(file, questions, replies):
    def question(text):
        questions.append(text)
        return replies.pop(0)

    tools = open_tools(file, "ask", question)
    yield tools
    tools.close()


@pytest.fixture
def ask(llm, opened, questions, replies, monkeypatch):
    """Asks a model that writes the given texts one after another, while the person gives the replies."""
    begin = Chat._begin

    def ask(texts, *answers):
        opened._approvals = Approvals("ask", opened._approvals._ask)
        questions.clear()
        replies[:] = answers
        chat = Chat(llm, Conversation(SamplingParams(temperature=0)), None, tools=opened)
        script = iter(texts)

        def scripted(self, asked):
            self.conversation.params = replace(self.conversation.params, regex=re.escape(next(script)))
            return begin(self, asked)

        monkeypatch.setattr(Chat, "_begin", scripted)
        if texts:
            chat.take("hello")
        return chat

    return ask


def test_call_is_shown_approved_run_and_answered(ask, questions, capsys):
    chat = ask([f"Let me see. {wanted('zoo_add', a=2, b=3)}", "It is five."], "y")
    user, assistant, result, answer = chat.conversation.messages
    assert [m["role"] for m in (user, assistant, result, answer)] == ["user", "assistant", "tool", "assistant"]
    assert assistant["content"].strip() == "Let me see."
    assert assistant["tool_calls"][0]["function"]["name"] == "zoo_add"
    assert (result["tool_call_id"], result["content"]) == (assistant["tool_calls"][0]["id"], "5")
    assert answer == {"role": "assistant", "content": "It is five."}
    shown = capsys.readouterr()
    assert "It is five." in shown.out
    assert "<tool_call>" not in shown.out
    assert 'zoo_add {"a": 2, "b": 3}' in shown.err
    assert questions == ["  Call it? [y/N/always/never] "]


def test_approval_question_shows_all_arguments(ask, opened, capsys):
    blanks = "\n" * 200
    arguments = '{"a": "' + "x  y " * 200 + f'",{blanks}"b": "\x1b[2Jthe end"}}'
    ask([], "n", "never")
    for _ in range(2):
        opened.run([ToolCall("1", "zoo_add", arguments)])
        shown = capsys.readouterr().err
        assert "x  y " * 200 in shown
        assert shown.split("\n")[0].endswith('", "b": "\\x1b[2Jthe end"}')
    opened.run([ToolCall("1", "zoo_add", arguments)])  # nobody is asked
    shown = capsys.readouterr().err
    assert "the end" not in shown
    assert f"({len(arguments):,} characters)" in shown


def test_always_and_never_ask_once(ask, questions):
    call = wanted("zoo_add", a=1, b=1)
    chat = ask([call, call, "Done."], "always")
    assert [m["content"] for m in chat.conversation.messages if m["role"] == "tool"] == ["2", "2"]
    assert len(questions) == 1
    chat.take("/tools")
    chat = ask([call + call, call, "Done."], "never")
    refused = [m["content"] for m in chat.conversation.messages if m["role"] == "tool"]
    assert len(refused) == 3
    assert all("refused" in text for text in refused)
    assert len(questions) == 1


@pytest.mark.parametrize("reply", ["", "n", "what?"])
def test_any_other_key_rejects_only_this_call(ask, questions, reply):
    call = wanted("zoo_add", a=1, b=1)
    chat = ask([call, call, "Done."], reply, "y")
    results = [m["content"] for m in chat.conversation.messages if m["role"] == "tool"]
    assert "refused" in results[0]
    assert results[1] == "2"


def test_server_errors_are_one_line_for_user_and_model(ask, capsys):
    chat = ask([wanted("zoo_crash") + wanted("zoo_nothing") + wanted("zoo_fail"), "Sorry."], "y", "y", "y")
    crashed, unknown, failed = (m["content"] for m in chat.conversation.messages if m["role"] == "tool")
    assert crashed.startswith("Error: MCP server 'zoo' ended during the call of crash (the zoo burns)")
    assert "unknown tool 'zoo_nothing'" in unknown
    assert failed == "Error: it went wrong: the cage is empty"
    assert "the zoo burns" in capsys.readouterr().err


def test_rounds_are_limited_and_a_truncated_call_does_not_run(ask, monkeypatch, capsys, llm, opened):
    monkeypatch.setattr(chat_module, "_MAX_ROUNDS", 2)
    call = wanted("zoo_add", a=1, b=1)
    chat = ask([call] * 5, "always")
    assert [m["role"] for m in chat.conversation.messages] == ["user", *["assistant", "tool"] * 2, "assistant"]
    assert "called tools 2 times" in capsys.readouterr().err
    cut = Chat(
        llm, Conversation(SamplingParams(temperature=0, max_tokens=40, regex=re.escape(call))), None, tools=opened
    )
    cut.ask("hello")
    assert [m["role"] for m in cut.conversation.messages] == ["user", "assistant"]


def test_ctrl_c_ends_a_call_and_keeps_the_conversation_consistent(ask, opened, monkeypatch, capsys):
    def interrupted(call):
        raise KeyboardInterrupt

    monkeypatch.setattr(opened._toolbox, "call", interrupted)
    call = wanted("zoo_add", a=1, b=1)
    chat = ask([call + call], "y")
    assert [m["role"] for m in chat.conversation.messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert "(stopped)" in capsys.readouterr().err


def test_saved_conversation_keeps_its_calls(ask, tmp_path):
    chat = ask([wanted("zoo_add", a=1, b=1), "Two."], "y")
    chat.conversation.save(tmp_path / "chat.json")
    other = Conversation(SamplingParams())
    other.load(tmp_path / "chat.json")
    assert other.messages == chat.conversation.messages
    other.messages[1]["tool_calls"] = [1]
    other.save(tmp_path / "chat.json")
    with pytest.raises(RequestError, match="is not a conversation"):
        other.load(tmp_path / "chat.json")


def test_scripts_choose_what_runs_without_a_question(model, file, tmp_path):
    with pytest.raises(RequestError, match="is not a terminal") as error:
        woolly("chat", model, "--mcp", file, stdin="hi\n")
    assert "--mcp-approve" in str(error.value)
    with pytest.raises(RequestError, match="expected one of ask, read-only, all"):
        woolly("chat", model, "--mcp", file, "--mcp-approve", "some", stdin="hi\n")
    broken = tmp_path / "broken.json"
    broken.write_text('{"mcpServers": {"x": {"command": "nonesuch-program"}}}')
    with pytest.raises(ToolError, match="program 'nonesuch-program' not found"):
        woolly("chat", model, "--mcp", broken, "--mcp-approve", "all", stdin="hi\n")
