"""Tools of MCP servers on the page: each call waits for the person, and its result goes back to the model."""

import json
import sys
from pathlib import Path

import pytest

from tests.serving.pages.conftest import answers, ask, assert_shows, chunk, reload, served, settled
from tests.serving.pages.test_turns import DONE, ending, reply_with
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


def calls(*arguments, name="zoo_add"):
    pieces = [
        {"index": i, "id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": json.dumps(one)}}
        for i, one in enumerate(arguments)
    ]
    return chunk(tool_calls=pieces) + ending("tool_calls") + DONE


def says(text):
    return chunk(content=text) + ending("stop") + DONE


def open_with_tools(open_page, url):
    with_tools = open_page(url)
    with_tools.locator("label", has_text="MCP tools").wait_for(state="attached")
    return with_tools


def results(body):
    return [message["content"] for message in body["messages"] if message["role"] == "tool"]


def test_a_call_waits_for_the_person_and_its_result_is_answered(open_page, url):
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


def test_a_failing_tool_is_told_to_the_model_and_tools_can_be_switched_off(open_page, url):
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


def test_settings_are_saved_as_presets_and_chosen_again(open_page, url):
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
