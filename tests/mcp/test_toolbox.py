"""Tools of real MCP servers: over stdio and HTTP, and servers that crash, flood, are slow or absent."""

import json
import re
import sys
import threading
import time
from pathlib import Path

import pytest
import uvicorn

from tests.cases.later import Later
from woolly.chat import ToolCall
from woolly.errors import RequestError, ToolError
from woolly.machine.optional_packages import install_command
from woolly.mcp import ServerSpec, Toolbox, optional_package, toolbox
from woolly.mcp.result import MAX_CHARACTERS
from woolly.mcp.sanitize import MAX_DESCRIPTION

server = Later("mcp.server")
SERVER = str(Path(__file__).with_name("server.py"))


def spec(name="zoo", *, timeout=120.0, **fields):
    return ServerSpec(name, sys.executable, (SERVER,), timeout=timeout, **fields)


@pytest.fixture(scope="module")
def box():
    box = Toolbox([spec(env={"SECRET": "sheep"})])
    assert not box.open()
    yield box
    box.close()


@pytest.fixture
def call(box):
    return lambda tool, **arguments: box.call(ToolCall("1", tool, json.dumps(arguments)))


def test_tool_is_listed_with_its_schema_and_called(box, call):
    tool = box.find("zoo_add")
    assert (tool.server, tool.inner_name, tool.is_read_only) == ("zoo", "add", True)
    assert tool.tool.description == "Adds two numbers."
    assert set(tool.tool.schema["properties"]) == {"a", "b"}
    assert not box.find("zoo_fail").is_read_only
    assert call("zoo_add", a=2, b=3).text == "5"


def test_unsupported_package_version_is_named(monkeypatch):
    monkeypatch.delattr("mcp.Client")
    box = Toolbox([spec()])
    try:
        (error,) = box.open()
    finally:
        box.close()
    assert "unsupported version of the package mcp (cannot import name 'Client'" in str(error)
    assert str(error).endswith(install_command("mcp"))


def test_server_gets_its_own_variables_and_not_ours(call):
    assert call("zoo_variable", name="SECRET").text == "sheep"
    assert call("zoo_variable", name="PYTEST_CURRENT_TEST").text == "(none)"


def test_failures_are_marked_results(call):
    assert call("zoo_fail").is_error
    wrong = call("zoo_add", a="x")
    assert wrong.is_error
    assert "'b'" in wrong.text


def test_results_become_text_of_limited_size(call):
    text = call("zoo_flood").text
    assert text.startswith("x" * MAX_CHARACTERS + "\n[truncated")
    assert "100,000" in text
    assert call("zoo_image").text == "[image: not shown: only text is supported]"


def test_server_texts_cannot_control_the_terminal_and_are_limited(box, call):
    assert call("zoo_shout").text == "␛[2J␇ab\n\tc␍d�\nend"
    shout = box.find("zoo_shout").tool
    assert shout.description == f"␛]0;x␇{'long ' * 400}"[:MAX_DESCRIPTION] + "…"
    inner = shout.parameters["properties"]["name"]
    assert inner == {"type": "string", "description": "␛[31m" + "y" * (MAX_DESCRIPTION - 5) + "…", "enum": ["\x1b"]}


def test_last_output_of_a_server_cannot_control_the_terminal():
    code = "import sys; sys.exit('\\x1b[2Jgone')"
    box = Toolbox([ServerSpec("gone", sys.executable, ("-c", code), timeout=120)])
    try:
        (error,) = box.open()
    finally:
        box.close()
    assert "(␛[2Jgone)" in str(error)


def test_invalid_calls_give_a_one_line_error(box):
    for name, arguments, expected in (
        ("zoo_nothing", "{}", "available tools: zoo_add"),
        ("zoo_add", "[1]", "expected a JSON object"),
        ("zoo_add", "{", "not valid JSON"),
        ("zoo_add", '{"a": NaN, "b": 1}', r"not valid JSON \(NaN is not a valid JSON number\)"),
        ("zoo_add", '{"a": [-Infinity], "b": 1}', "-Infinity is not a valid JSON number"),
        ("zoo_add", '{"a": 1e999, "b": 1}', "1e999 is too large"),
    ):
        with pytest.raises(ToolError, match=expected):
            box.call(ToolCall("1", name, arguments))


def test_crashed_server_is_restarted(call):
    with pytest.raises(ToolError, match=r"'zoo' ended during the call of crash \(the zoo burns\)"):
        call("zoo_crash")
    assert call("zoo_add", a=1, b=1).text == "2"


def test_failing_servers_leave_the_others_and_end_with_the_toolbox():
    start = time.monotonic()
    silent = ServerSpec("silent", sys.executable, ("-c", "import time; time.sleep(600)"), timeout=0.5)
    broken = ServerSpec("broken", sys.executable, ("-c", "import nonesuch"), timeout=120)
    box = Toolbox([spec(timeout=120), ServerSpec("absent", "nonesuch-program"), broken, silent])
    try:
        absent, ended, slow = map(str, box.open())
        assert absent == "cannot start MCP server 'absent': program 'nonesuch-program' not found"
        assert "(ModuleNotFoundError: No module named 'nonesuch')" in ended
        assert "within 0.5 s" in slow
        assert "timeout_ms" in slow
        assert box.call(ToolCall("1", "zoo_add", '{"a": 1, "b": 2}')).text == "3"
        running = box.begin(ToolCall("1", "zoo_sleep", '{"seconds": 0.1}'))
        running.cancel()
    finally:
        box.close()
    assert time.monotonic() - start < 300  # the silent one was not waited for
    box.close()  # a second time is no error


def test_invalid_message_lines_are_ignored(capfd):
    code = f"print('hello', flush=True); import runpy; runpy.run_path({SERVER!r}, run_name='__main__')"
    box = Toolbox([ServerSpec("chatty", sys.executable, ("-c", code), timeout=120)])
    try:
        assert not box.open()
        assert box.call(ToolCall("1", "chatty_add", '{"a": 1, "b": 2}')).text == "3"
    finally:
        box.close()
    assert capfd.readouterr() == ("", "")


def test_tool_names_are_short_and_unique():
    assert toolbox._name_of("my server", "get.time", set()) == "my_server_get_time"
    long = toolbox._name_of("s", "x" * 100, set())
    assert len(long) == 64
    other = toolbox._name_of("s", "x" * 100, {long})
    assert len(other) == 64
    assert other.endswith("_2")


def test_streamable_http_with_headers():
    seen = []
    zoo = server.MCPServer("zoo")

    @zoo.tool()
    def add(a: int, b: int) -> str:
        return str(a + b)

    app = zoo.streamable_http_app(stateless_http=True, json_response=True)

    async def recorded(scope, receive, send):
        if scope["type"] == "http":
            seen.append(dict(scope["headers"]).get(b"authorization"))
        await app(scope, receive, send)

    running = uvicorn.Server(uvicorn.Config(recorded, port=0, log_config=None, lifespan="on"))
    thread = threading.Thread(target=running.run)
    thread.start()
    while not running.started:
        assert thread.is_alive()
        time.sleep(0.01)
    url = f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}/mcp"
    box = Toolbox([ServerSpec("far", url=url, headers={"Authorization": "Bearer t"}, timeout=120)])
    try:
        assert not box.open()
        assert box.call(ToolCall("1", "far_add", '{"a": 1, "b": 2}')).text == "3"
    finally:
        box.close()
        running.should_exit = True
        thread.join()
    assert set(seen) == {b"Bearer t"}


def test_missing_package_gives_a_one_line_error(monkeypatch):
    monkeypatch.setattr(optional_package, "find_spec", lambda name: None)
    with pytest.raises(RequestError, match=re.escape(install_command("mcp"))):
        Toolbox([])
