"""Tools of MCP servers on the page: each call waits for the person, and its result goes back to the model."""

import json
import socket
import sys
import threading
from pathlib import Path

import pytest

from tests.serving.pages.conftest import (
    WAIT,
    answers,
    ask,
    assert_shows,
    chunk,
    reload,
    served,
    settled,
    until,
)
from tests.serving.pages.test_messages import DONE, ending, reply_with, says
from woolly.serving import Settings, create_app

SERVER = str(Path(__file__).parents[2] / "mcp" / "server.py")


@pytest.fixture(scope="module")
def url(tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tools")
    file = folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"zoo": {"command": sys.executable, "args": [SERVER]}}}))
    settings = Settings(models_dir=tiny_model.parent, sessions_file=folder / "s.db", threads=1, mcp=file)
    with served(create_app(settings)) as url:
        yield url


@pytest.fixture
def gated(tiny_model, tmp_path):
    """The page of a server whose MCP server starts when there is a file `gate`, and fails if that says so."""
    gate, file = tmp_path / "gate", tmp_path / "mcp.json"
    code = (
        "import runpy, sys, time; from pathlib import Path\n"
        f"while not Path({str(gate)!r}).exists(): time.sleep(0.02)\n"
        f"if Path({str(gate)!r}).read_text() == 'fail': sys.exit('the gate is shut')\n"
        f"runpy.run_path({SERVER!r}, run_name='__main__')"
    )
    slow = {"command": sys.executable, "args": ["-c", code], "timeout_ms": WAIT}
    file.write_text(json.dumps({"mcpServers": {"slow": slow}}))
    settings = Settings(models_dir=tiny_model.parent, sessions_file=tmp_path / "s.db", threads=1, mcp=file)
    with served(create_app(settings)) as url:
        yield url, gate
        if not gate.exists():
            gate.write_text("open")


def calls(*arguments, name="zoo_add"):
    pieces = [
        {"index": i, "id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": json.dumps(one)}}
        for i, one in enumerate(arguments)
    ]
    return chunk(tool_calls=pieces) + ending("tool_calls") + DONE


def open_with_tools(open_page, url):
    with_tools = open_page(url)
    with_tools.locator("label", has_text="MCP tools").wait_for(state="attached")
    return with_tools


def ask_soon(page, text):
    """Sends a message, and does not wait for its answer."""
    page.locator("#message").fill(text)
    page.keyboard.press("Enter")
    page.locator(".message.running").wait_for()


def results(body):
    return [message["content"] for message in body["messages"] if message["role"] == "tool"]


def test_call_waits_for_approval_and_its_result_is_answered(open_page, url):
    page = open_with_tools(open_page, url)
    five, two = {"a": 2, "b": 3}, {"a": 1, "b": 1}
    bodies = reply_with(page, calls(five, two), calls(two), says("Done."))
    ask(page, "Add.")
    assert "zoo_add" in [tool["function"]["name"] for tool in bodies[0]["tools"]]
    assert page.locator(".call").count() == 2
    page.get_by_role("button", name="Refuse: zoo_add").first.click()
    page.get_by_role("button", name="Always allow: zoo_add").first.click()
    page.get_by_text("Done.", exact=True).wait_for()
    settled(page)
    refused, first, second = results(bodies[2])
    assert "refused" in refused
    assert [first, second] == ["2", "2"]  # the second without a question
    # A conversation that comes back from the store brings no permission along.
    reply_with(page, calls(two), says("Never."))
    reload(page)
    ask(page, "Once more.")
    page.get_by_role("group", name="May zoo_add be called?").wait_for()
    assert page.get_by_text("Never.", exact=True).count() == 0


@pytest.mark.rare
def test_message_waits_for_starting_servers(open_page, gated):
    url, gate = gated
    page = open_page(url)
    bodies = reply_with(page, says("Done."))
    note = page.locator("#composer-note")
    until(page, lambda: note.inner_text() == "Starting tools (slow) …")
    page.locator("#message").fill("Add.")
    page.keyboard.press("Enter")
    until(page, lambda: note.inner_text() == "Starting tools (slow) … Your message waits for them.")
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped before the answer began.").wait_for()
    assert page.get_by_role("button", name="Send without them").is_hidden()
    ask_soon(page, "Without tools.")
    page.get_by_role("button", name="Send without them").click()
    settled(page)
    assert len(bodies) == 1
    assert "tools" not in bodies[0]
    ask_soon(page, "With tools.")
    gate.write_text("open")
    settled(page)
    assert "slow_add" in [tool["function"]["name"] for tool in bodies[1]["tools"]]


@pytest.mark.rare
def test_failed_server_is_shown_and_restarted(open_page, gated):
    url, gate = gated
    gate.write_text("fail")
    page = open_page(url)
    problem = page.locator(".server-problem")
    problem.get_by_text("Cannot use MCP server 'slow'").wait_for()
    bodies = reply_with(page, says("Done."))
    ask(page, "Without tools.")
    assert "tools" not in bodies[0]
    problem.get_by_role("button", name="Try again").click()
    problem.get_by_role("button", name="Put away").click()
    assert problem.count() == 0
    gate.write_text("open")
    reload(page)
    problem.get_by_role("button", name="Try again").click()
    problem.wait_for(state="detached")
    ask(page, "With tools.")
    assert bodies[1]["tools"]


def test_failing_tool_is_reported_to_the_model_and_tools_can_be_disabled(open_page, url):
    page = open_with_tools(open_page, url)
    bodies = reply_with(page, calls({}, name="zoo_fail"), says("It failed."), says("Alone."))
    ask(page, "Fail.")
    page.get_by_role("button", name="Run once: zoo_fail").click()
    page.get_by_text("It failed.", exact=True).wait_for()
    settled(page)
    assert results(bodies[1])[0].startswith("Error: ")
    page.keyboard.press("Control+,")
    page.locator("summary", has_text="Tools").click()
    page.get_by_label("MCP tools").select_option("off")
    ask(page, "Without.")
    assert "tools" not in bodies[2]
    assert answers(page).last.inner_text() == "Alone."


@pytest.mark.rare
def test_tools_button_counts_lists_and_switches(open_page, url):
    page = open_with_tools(open_page, url)
    bodies = reply_with(page, says("Done."))
    button, listed = page.locator("#tools"), page.locator("#tool-list")
    assert button.get_attribute("aria-label") == "Tools: 8 offered"
    assert page.locator("#tools-count").inner_text() == "8"
    button.click()
    listed.get_by_text("8 of 8 tools").wait_for()
    listed.locator("summary").click()
    listed.get_by_role("switch", name="zoo_add").uncheck()
    assert listed.get_by_text("7 of 8 tools").is_visible()
    page.keyboard.press("Escape")
    assert listed.is_hidden()
    ask(page, "Seven.")
    names = [tool["function"]["name"] for tool in bodies[0]["tools"]]
    assert len(names) == 7
    assert "zoo_add" not in names
    reload(page)
    until(page, lambda: page.locator("#tools-count").inner_text() == "7")
    button.click()
    listed.get_by_role("switch", name="zoo", exact=True).uncheck()
    ask(page, "None.")
    assert "tools" not in bodies[1]
    assert page.locator("#tools-count").inner_text() == "0"


@pytest.mark.rare
def test_failed_server_is_in_the_list(open_page, gated):
    url, gate = gated
    gate.write_text("fail")
    page = open_page(url)
    page.locator("#tools.failed").wait_for()
    assert page.locator("#tools").get_attribute("aria-label") == "Tools: 0 offered, 1 server failed"
    page.locator("#tools").click()
    assert "the gate is shut" in page.locator("#tool-list .reason").inner_text()
    gate.write_text("open")
    page.locator("#tool-list").get_by_role("button", name="Try again").click()
    page.locator("#tool-list").get_by_text("8 of 8 tools").wait_for()


@pytest.mark.rare
def test_calls_and_results_are_folded_to_a_line_each(open_page, url):
    page = open_with_tools(open_page, url)
    reply_with(page, calls({"a": 17, "b": 25}), says("It is done."))
    ask(page, "Add.")
    assert page.locator(".call[open]").count() == 1  # what is asked about is seen whole
    page.get_by_role("button", name="Run once: zoo_add").click()
    page.get_by_text("It is done.", exact=True).wait_for()
    settled(page)
    assert page.locator(".call[open]").count() == 0
    assert_shows(page.locator(".call .brief"), ['{"a": 17, "b": 25}', "42"])
    page.locator(".message.tool summary").click()
    assert page.locator(".message.tool .result").inner_text() == "42"


@pytest.mark.rare
def test_call_is_named_while_it_streams(open_page, url):
    page = open_with_tools(open_page, url)
    piece = {"index": 0, "id": "call_0", "type": "function", "function": {"name": "zoo_add", "arguments": '{"a"'}}
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    is_seen = threading.Event()

    def serve(listener):
        connection, _ = listener.accept()
        with connection:
            connection.sendall((head + chunk(tool_calls=[piece])).encode())
            is_seen.wait(WAIT / 1000)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        page.route("**/v1/chat/completions", lambda route: route.continue_(url=address))
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        ask_soon(page, "Add.")
        page.locator(".calling", has_text="Calling zoo_add …").wait_for()
        is_seen.set()
        thread.join()
    settled(page)
    assert page.locator(".calling").count() == 0


MARKUP = "<img src=x onerror=hacked=1><svg onload=hacked=1><script>hacked=1</script>"


def test_hostile_server_texts_are_shown_and_harmless(open_page, url):
    page = open_page(url)
    schema = {"type": "object", "properties": {}}
    tool = {"name": "evil_do", "description": MARKUP, "parameters": schema, "server": MARKUP, "read_only": False}
    servers = [{"name": MARKUP, "state": "up", "reason": None}, {"name": "b", "state": "failed", "reason": MARKUP}]
    page.route("**/mcp/tools", lambda route: route.fulfill(json={"tools": [tool], "servers": servers}))
    result = f"{MARKUP}\x1b[2J\u202e[x](javascript:hacked=1) $\\href{{javascript:hacked=1}}{{x}}$ " + "*" * 20_000
    page.route("**/mcp/call", lambda route: route.fulfill(json={"text": result, "is_error": False}))
    arguments = {"a": MARKUP, "b": "*" * 20_000, "c": "[" * 5_000}
    bodies = reply_with(page, calls(arguments, name="evil_do"), says(f"{MARKUP} {'*' * 40_000} $${'{' * 5_000}$$"))
    reload(page)
    page.locator(".server-problem").wait_for()
    page.locator("#tools").click()
    page.locator("#tool-list summary").click()
    assert page.locator("#tool-list li").inner_text().count(MARKUP) == 1
    page.keyboard.press("Escape")
    ask(page, "Do it.")
    page.get_by_role("button", name="Run once: evil_do").click()
    page.locator(".message.tool").wait_for()
    settled(page)
    page.locator(".message.tool summary").click()
    assert page.locator(".message.tool .result").inner_text().startswith(MARKUP)
    assert results(bodies[1]) == [result]
    assert page.evaluate("window.hacked") is None
    made = "#thread :is(script, img, iframe), #tool-list :is(script, img), #server-problems :is(script, img)"
    assert page.locator(made).count() == 0
    assert page.locator("#thread a").count() == 0


@pytest.mark.rare
def test_settings_are_saved_as_presets_and_selected_again(open_page, url):
    page = open_page(url)
    page.keyboard.press("Control+,")
    prompt = page.get_by_label("System prompt")
    prompt.fill("Answer like a pirate.")
    page.get_by_label("Name of the preset").fill("Pirate")
    page.get_by_role("button", name="Save as preset").click()
    assert page.locator("#preset").input_value() == "Pirate"
    prompt.fill("Something else.")
    reload(page)
    page.keyboard.press("Control+,")
    assert page.locator("#preset").input_value() == ""
    page.locator("#preset").select_option("Pirate")
    assert page.get_by_label("System prompt").input_value() == "Answer like a pirate."
    bodies = reply_with(page, says("Arr."))
    ask(page, "Hello.")
    assert bodies[0]["messages"][0] == {"role": "system", "content": "Answer like a pirate."}
    page.get_by_role("button", name="Delete", exact=True).click()
    assert_shows(page.locator("#preset option"), ["None saved yet"])
    page.get_by_role("button", name="Undo").click()
    assert page.locator("#preset").input_value() == "Pirate"
