"""Chatting in a real browser with a real model: what a person types, sees, and finds again."""

import json
from urllib.parse import urlsplit

import pytest

from tests.serving.pages.conftest import (
    answer_with,
    answers,
    ask,
    assert_focus,
    assert_shows,
    reload,
    settled,
    until,
)


def versions(page):
    return [text.replace("\u2009", "") for text in page.locator(".branches span").all_inner_texts()]


def test_answer_streams_and_survives_a_reload(page, server):
    with server.slowly():
        page.locator("#message").fill("Count from one to twenty, one number per line.")
        page.keyboard.press("Enter")
        page.locator(".message.running").wait_for()
        assert page.locator(".message.user .plain").inner_text() == "Count from one to twenty, one number per line."
        assert page.locator("#send").get_attribute("aria-label") == "Stop"
        seen = set()  # it is shown as it comes
        until(page, lambda: seen.add(len(answers(page).inner_text())) or len(seen - {0}) >= 2)
        assert page.locator(".message.running").count() == 1
    settled(page)
    whole = answers(page).inner_text()
    assert len(whole) > max(20, *seen)
    assert "tokens/s" in page.locator(".assistant .figures").inner_text()
    assert page.locator("#announcer").inner_text().startswith("Answer: ")
    reload(page)
    assert_shows(answers(page), [whole])
    assert page.locator(".conversation.current .open").inner_text().startswith("Count from one to twenty")


def test_no_request_fails_in_an_ordinary_chat(page):
    for question in ("Name three colours.", "And three animals.", "And three trees.", "Thank you."):
        ask(page, question)
    for key in ("Control+,", "Control+.", "Control+.", "Control+K"):
        page.keyboard.press(key)
    page.locator("#model").click()
    page.keyboard.press("Escape")
    ask(page, "Hello.")
    page.wait_for_load_state("networkidle")
    failed = [(request.url, request.failure) for request in page.watch.failed]
    assert not failed
    done = [urlsplit(request.url).path for request in page.watch.finished]
    assert done.count("/v1/chat/completions") == 5


def test_stop_keeps_the_partial_answer_and_the_server_ends_its_work(page, server):
    page.keyboard.press("Control+,")
    page.get_by_label("Max tokens", exact=True).fill("2000")
    page.locator("summary", has_text="More").click()
    page.get_by_label("Ignore EOS").select_option("true")
    page.keyboard.press("Control+,")
    page.locator("#message").fill("Tell a very long story.")
    page.keyboard.press("Enter")
    with server.slowly():
        page.locator(".message.begun").wait_for()
        page.keyboard.press("Escape")
        settled(page)
    assert len(answers(page).inner_text()) > 0
    assert "stopped" in page.locator(".assistant .figures").inner_text()
    assert_shows(page.locator(".problem"), [])
    with server.client() as client:
        until(page, lambda: not any(slot["is_processing"] for slot in client.get("/slots").json()))


def test_regenerating_keeps_the_first_answer_as_a_version(page):
    answer_with(page, "The first.", "The second.")
    ask(page, "Say something.")
    page.get_by_label("Answer again").click()
    settled(page)
    assert_shows(answers(page), ["The second."])
    until(page, lambda: versions(page) == ["2/2"])
    page.get_by_label("Version before").click()
    assert_shows(answers(page), ["The first."])
    reload(page)
    answers(page).wait_for()
    assert_shows(answers(page), ["The first."])
    until(page, lambda: versions(page) == ["1/2"])


def test_edited_message_starts_a_branch_and_the_old_one_stays(page):
    bodies = answer_with(page, "Paris.", "About two million.", "Rome.")
    ask(page, "What is the capital of France?")
    ask(page, "How many people live there?")
    page.locator(".message.user").first.hover()
    page.get_by_label("Edit message").first.click()
    box = page.get_by_role("textbox", name="Edit message")
    assert box.input_value() == "What is the capital of France?"
    box.fill("What is the capital of Italy?")
    page.keyboard.press("Enter")
    settled(page)
    assert_shows(page.locator(".message.user .plain"), ["What is the capital of Italy?"])
    assert_shows(answers(page), ["Rome."])
    assert [message["content"] for message in bodies[-1]["messages"]] == ["What is the capital of Italy?"]
    page.locator(".message.user").first.hover()
    page.get_by_label("Version before").click()
    assert_shows(answers(page), ["Paris.", "About two million."])


@pytest.mark.rare
def test_conversation_can_be_found_renamed_deleted_and_restored(page, tmp_path):
    answer_with(page, "It is a fruit.")
    ask(page, "What is a quince?")
    page.keyboard.press("Control+K")
    ask(page, "What is a lathe?")
    titles = page.locator(".conversation .open")
    assert_shows(titles, ["What is a lathe?", "What is a quince?"])
    page.locator("#search").fill("QUINCE what")
    assert_shows(titles, ["What is a quince?"])
    page.locator("#search").fill("")
    titles.nth(1).focus()
    page.keyboard.press("F2")
    page.keyboard.type("Fruit")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Fruit", exact=True).click()
    with page.expect_download() as download:
        page.get_by_label("Save Fruit as a file").click()
    file = tmp_path / "saved.json"
    download.value.save_as(file)
    titles.first.focus()
    page.get_by_role("button", name="Fruit", exact=True).focus()
    page.keyboard.press("Delete")
    page.locator(".toast").wait_for()
    assert_shows(titles, ["What is a lathe?"])
    page.get_by_role("button", name="Undo").click()
    page.get_by_role("button", name="Fruit", exact=True).focus()
    page.keyboard.press("Delete")
    reload(page)
    page.locator("#model[data-state=ready]").wait_for()
    assert_shows(titles, ["What is a lathe?"])
    page.locator("#import-file").set_input_files(file)
    page.get_by_role("button", name="Fruit", exact=True).click()
    assert_shows(answers(page), ["It is a fruit."])


@pytest.mark.rare
def test_file_without_conversations_is_rejected_and_changes_nothing(page, tmp_path):
    file = tmp_path / "bad.json"
    for bad in ("[]", "null", "{", json.dumps({"conversations": [{"messages": [{"id": "a", "role": "system"}]}]})):
        file.write_text(bad)
        page.locator("#import-file").set_input_files(file)
        page.locator(".toast", has_text="bad.json has no conversations").wait_for()
        assert page.locator(".conversation").count() == 0


def test_everything_works_by_keyboard(page):
    bodies = answer_with(page, "Yes.")
    assert_focus(page, "message")
    page.keyboard.type("One")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("Two")
    page.keyboard.press("Enter")
    settled(page)
    assert bodies[0]["messages"][0]["content"] == "One\nTwo"
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Edit message"
    page.keyboard.press("Escape")
    page.keyboard.press("Control+Shift+Enter")
    page.locator(".branches").wait_for()
    page.keyboard.press("Control+/")
    assert page.get_by_role("dialog", name="Keys").is_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("Control+.")
    assert page.locator("#performance-page").is_visible()
    page.keyboard.press("Escape")
    assert page.locator("#panel").is_hidden()
    page.keyboard.press("Control+K")
    assert page.locator(".start").is_visible()
    assert_focus(page, "message")
    page.keyboard.press("Control+Shift+F")
    assert_focus(page, "search")
    # Whatever can be tabbed to has a name, and shows that it is there.
    seen = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        name, outline, place = page.evaluate(
            """() => {
              const node = document.activeElement;
              const style = getComputedStyle(node);
              const label = node.labels?.[0]?.innerText ?? "";
              const name = node.getAttribute("aria-label") ?? (node.innerText || label);
              const isShown = style.outlineStyle !== "none" || node.closest(".box")?.matches(":focus-within");
              return node === document.body ? ["the end", true, ""] : [name, isShown, node.id || name];
            }"""
        )
        if place in seen:
            break
        seen.add(place)
        assert name.strip() and outline, place
    assert {"model", "performance", "settings", "message", "new-chat", "theme"} <= seen


def test_only_meaningful_settings_are_sent(page):
    bodies = answer_with(page, "{}")
    page.keyboard.press("Control+,")
    page.get_by_label("System prompt").fill("Answer in JSON.")
    page.get_by_label("Temperature").first.fill("0.3")
    page.get_by_label("Stop sequences").fill("END\nSTOP")
    for group in ("Samplers", "Mirostat"):
        page.locator("summary", has_text=group).click()
    assert page.get_by_label("Top k").get_attribute("placeholder") == "40"
    page.get_by_label("Top k").fill("7")
    assert page.get_by_label("XTC threshold").is_disabled()
    page.get_by_label("XTC probability").fill("0.5")
    page.get_by_label("XTC threshold").fill("0.2")
    page.get_by_label("Structured output").select_option("json_schema")
    page.get_by_label("JSON schema").fill('{"type": "object"}')
    ask(page, "Go.")
    sent = bodies[-1]
    assert sent["messages"][0] == {"role": "system", "content": "Answer in JSON."}
    assert (sent["temperature"], sent["top_k"], sent["stop"]) == (0.3, 7, ["END", "STOP"])
    assert (sent["xtc_probability"], sent["xtc_threshold"]) == (0.5, 0.2)
    assert sent["response_format"]["json_schema"]["schema"] == {"type": "object"}
    page.get_by_label("Mirostat").select_option("2")
    ask(page, "Go on.")
    sent = bodies[-1]
    assert sent["mirostat"] == 2 and sent["temperature"] == 0.3
    assert not {"top_k", "xtc_probability", "xtc_threshold"} & set(sent)
    reload(page)
    answers(page).first.wait_for()
    page.keyboard.press("Control+,")
    assert page.get_by_label("System prompt").input_value() == "Answer in JSON."


@pytest.mark.rare
def test_schema_constrains_the_real_model(page):
    page.keyboard.press("Control+,")
    page.get_by_label("Structured output").select_option("json_schema")
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]}
    page.get_by_label("JSON schema").fill(json.dumps({**schema, "additionalProperties": False}))
    ask(page, "How many legs has a dog?")
    assert set(json.loads(answers(page).locator("pre").inner_text())) == {"n"}


@pytest.mark.rare
def test_structured_output_starts_with_an_example(page):
    bodies = answer_with(page, "{}")
    page.keyboard.press("Control+,")
    chooser = page.get_by_label("Structured output")
    chooser.select_option("json_schema")
    ask(page, "Go.")
    assert bodies[-1]["response_format"]["json_schema"]["schema"]["required"] == ["name", "age"]
    chooser.select_option("regex")
    box = page.get_by_label("Regular expression")
    assert box.input_value() == "[0-9]{4}-[0-9]{2}-[0-9]{2}"
    box.fill("[a-z]+")
    chooser.select_option("grammar")
    box = page.get_by_label("Grammar (GBNF)")
    assert box.input_value() == "[a-z]+"  # what was written stays
    box.fill("")
    assert "This field is empty" in page.locator("small.wrong").inner_text()
    page.get_by_role("button", name="Use example").click()
    ask(page, "Go on.")
    assert bodies[-1]["grammar"] == 'root ::= "yes" | "no"'


@pytest.mark.rare
def test_model_is_unloaded_and_loaded(page, server):
    page.locator("#model").click()
    page.get_by_label(f"Unload {server.name}").click()
    page.locator("#model[data-state=unloaded]").wait_for()
    page.get_by_label(f"Load {server.name}").click()
    page.locator("#model[data-state=ready]").wait_for()
    page.keyboard.press("Escape")
    assert page.locator("#models").is_hidden()
    assert server.name in page.locator(".start .about").inner_text()


@pytest.mark.rare
def test_escape_closes_dialogs_before_it_stops_the_answer(page, server):
    page.keyboard.press("Control+,")
    with server.slowly():
        page.locator("#message").fill("Count.")
        page.keyboard.press("Enter")
        page.locator(".message.running").wait_for()
        page.locator("#model").click()
        page.keyboard.press("Escape")
        assert page.locator("#models").is_hidden()
        assert page.locator("#panel").is_visible()
        page.keyboard.press("Escape")
        assert page.locator("#panel").is_hidden()
        assert page.locator(".message.running").count() == 1
        page.keyboard.press("Escape")
        settled(page)
    assert "stopped" in page.locator("#thread").inner_text().lower()
