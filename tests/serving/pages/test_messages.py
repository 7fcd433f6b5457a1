"""Actions on messages of a conversation: continue, delete, fork, drop, attach, call."""

import json
import re

import pytest

from tests.serving.pages.conftest import (
    answer_with,
    answers,
    ask,
    assert_shows,
    chunk,
    event,
    kept,
    reload,
    settled,
    until,
)
from woolly.cli.chat.conversation import Conversation
from woolly.sampling import SamplingParams

CHAT = "**/v1/chat/completions"
DONE = event("[DONE]")


def ending(reason, **timings):
    return event({"model": "fake", "choices": [{"index": 0, "delta": {}, "finish_reason": reason}], **timings})


def says(text):
    return chunk(content=text) + ending("stop") + DONE


def reply_with(page, *streams):
    """From here on the page gets these streams, in turn; gives the bodies."""
    bodies = []

    def reply(route):
        bodies.append(route.request.post_data_json)
        stream = streams[min(len(bodies), len(streams)) - 1]
        if isinstance(stream, dict):
            route.fulfill(status=400, content_type="application/json", body=json.dumps({"error": stream}))
        else:
            route.fulfill(status=200, content_type="text/event-stream", body=stream)

    page.route(CHAT, reply)
    return bodies


def questions(page):
    return page.locator(".message.user .plain")


def test_truncated_answer_is_marked_and_continued(page):
    bodies = reply_with(
        page,
        chunk(content="One, two,") + ending("length") + DONE,
        chunk(content=" three.") + ending("stop") + DONE,
    )
    ask(page, "Count.")
    assert page.locator(".figures .cut").inner_text() == "truncated at the token limit"
    page.get_by_role("button", name="Continue").click()
    settled(page)
    assert_shows(answers(page), ["One, two, three."])
    assert bodies[1]["continue_final_message"] is True
    assert bodies[1]["messages"] == [
        {"role": "user", "content": "Count."},
        {"role": "assistant", "content": "One, two,"},
    ]
    assert page.locator(".figures .cut").count() == 0 and page.locator(".branches").count() == 0
    reload(page)
    answers(page).wait_for()
    assert_shows(answers(page), ["One, two, three."])


@pytest.mark.rare
def test_answer_interrupted_by_a_reload_is_marked(page, server):
    page.keyboard.press("Control+,")
    page.get_by_label("Max tokens", exact=True).fill("2000")
    page.locator("summary", has_text="More").click()
    page.get_by_label("Ignore EOS").select_option("true")
    page.locator("#message").fill("Tell a very long story.")
    with server.slowly():
        page.locator("#message").press("Enter")
        page.locator(".message.begun").wait_for()
        until(page, lambda: re.search(r"\w{3}", answers(page).inner_text()))
        word = re.search(r"\w{3}", answers(page).inner_text())[0]
        until(page, lambda: word in kept(page).replace("Tell a very long story.", ""))  # it is kept once per second
        page.reload()
    page.locator(".figures .cut").wait_for()
    assert page.locator(".figures .cut").inner_text() == "not finished"
    assert page.get_by_role("button", name="Continue").is_visible()


@pytest.mark.rare
def test_real_server_continues_an_answer(page):
    page.keyboard.press("Control+,")
    page.get_by_label("Max tokens", exact=True).fill("4")
    ask(page, "Count from one to twenty, one number per line.")
    first = answers(page).inner_text()
    page.get_by_role("button", name="Continue").click()
    settled(page)
    assert_shows(page.locator(".problem"), [])
    assert answers(page).inner_text().startswith(first) and len(answers(page).inner_text()) > len(first)


@pytest.mark.rare
def test_each_answer_shows_its_model(page):
    answer_with(page, "Yes.")
    ask(page, "Is it?")
    assert page.locator(".assistant .figures").inner_text().startswith("fake")


@pytest.mark.rare
def test_one_message_is_deleted_and_restored(page):
    bodies = answer_with(page, "First.", "Second.", "Third.")
    ask(page, "One?")
    ask(page, "Two?")
    page.locator(".message.assistant").first.hover()
    page.get_by_label("Delete answer").first.click()
    assert_shows(answers(page), ["Second."])
    assert_shows(questions(page), ["One?", "Two?"])
    page.get_by_role("button", name="Undo").click()
    assert_shows(answers(page), ["First.", "Second."])
    page.locator(".message.user").nth(1).hover()
    page.get_by_label("Delete message").nth(1).click()
    reload(page)
    answers(page).first.wait_for()
    ask(page, "Three?")
    assert [one["content"] for one in bodies[-1]["messages"]] == ["One?", "First.\n\nSecond.", "Three?"]


@pytest.mark.rare
def test_conversation_is_forked_from_a_message(page):
    answer_with(page, "First.", "Second.", "Other.")
    ask(page, "One?")
    ask(page, "Two?")
    page.locator(".message.assistant").first.hover()
    page.get_by_label("Fork: new conversation from here").nth(1).click()
    assert_shows(questions(page), ["One?"])
    assert_shows(page.locator(".conversation .open"), ["One? (fork)", "One?"])
    ask(page, "Three?")
    page.get_by_role("button", name="One?", exact=True).click()
    assert_shows(questions(page), ["One?", "Two?"])


def test_text_files_are_sent_with_a_message(page):
    bodies = answer_with(page, "Read.")
    files = [
        {"name": "a.py", "mimeType": "text/x-python", "buffer": b"print('```')\n"},
        {"name": "b.bin", "mimeType": "application/octet-stream", "buffer": b"\x00\x01\xff"},
        {"name": "big.txt", "mimeType": "text/plain", "buffer": b"x" * 300_000},
        {"name": "c.txt", "mimeType": "text/plain", "buffer": b"hello"},
    ]
    page.locator("#attach-file").set_input_files(files[:2])
    page.locator(".toast", has_text="b.bin is not supported; attach UTF-8 text, an image (PNG").wait_for()
    page.locator("#attach-file").set_input_files(files[2])
    page.locator(".toast", has_text="big.txt has 300 kB").wait_for()
    page.evaluate(
        """() => {
          const data = new DataTransfer();
          data.items.add(new File(["hello"], "c.txt", {type: "text/plain"}));
          document.querySelector("main").dispatchEvent(new DragEvent("drop", {dataTransfer: data, cancelable: true}));
          const more = new DataTransfer();
          more.items.add(new File(["pasted"], "d.txt", {type: "text/plain"}));
          const event = new ClipboardEvent("paste", {clipboardData: more, bubbles: true, cancelable: true});
          document.getElementById("message").dispatchEvent(event);
        }"""
    )
    assert_shows(page.locator("#files .file"), ["a.py 13 B", "c.txt 5 B", "d.txt 6 B"])
    page.get_by_label("Remove d.txt").click()
    ask(page, "What is it?")
    text = "File a.py:\n````py\nprint('```')\n````\n\nFile c.txt:\n```txt\nhello\n```\n\nWhat is it?"
    assert bodies[0]["messages"][0]["content"] == text
    assert page.locator("#files").is_hidden()
    reload(page)
    answers(page).wait_for()
    assert_shows(page.locator(".message.user .file"), ["a.py 13 B", "c.txt 5 B"])
    assert_shows(questions(page), ["What is it?"])


@pytest.mark.rare
def test_json_answers_are_shown_as_code_as_written(page):
    text = '{\n  "a_b": "*x*",\n  "c": [1, 2]\n}'
    answer_with(page, text)
    page.keyboard.press("Control+,")
    page.get_by_label("Structured output").select_option("json_object")
    ask(page, "Give JSON.")
    assert answers(page).locator("pre").inner_text() == text
    assert answers(page).get_by_label("Copy code").count() == 1
    reload(page)
    answers(page).wait_for()
    assert answers(page).locator("pre").inner_text() == text


CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": '}}
MORE = {"index": 0, "function": {"arguments": '"Rome"}'}}


@pytest.mark.rare
def test_tool_calls_are_shown_and_their_results_sent(page):
    stream = chunk(tool_calls=[CALL]) + chunk(tool_calls=[MORE]) + ending("tool_calls") + DONE
    bodies = reply_with(page, stream, chunk(content="It is sunny.") + ending("stop") + DONE)
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    page.keyboard.press("Control+,")
    page.locator("summary", has_text="Tools").click()
    page.get_by_label("Tools (JSON)").fill(json.dumps(tools))
    ask(page, "How is the weather in Rome?")
    assert bodies[0]["tools"] == tools
    assert "weather" in page.locator(".call summary").inner_text()
    assert json.loads(page.locator(".call pre").inner_text()) == {"city": "Rome"}
    page.get_by_label("Result of weather").fill('{"sky": "clear"}')
    page.get_by_role("button", name="Send result").click()
    settled(page)
    assert answers(page).last.inner_text() == "It is sunny."
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    assert bodies[1]["messages"][1]["tool_calls"] == [call]
    assert bodies[1]["messages"][2] == {"role": "tool", "content": '{"sky": "clear"}', "tool_call_id": "call_1"}
    reload(page)
    answers(page).last.wait_for()
    assert page.locator(".call").count() == 2


@pytest.mark.rare
def test_token_probabilities_are_shown_on_request(page):
    page.keyboard.press("Control+,")
    page.locator("summary", has_text="Tools").click()
    page.get_by_label("Token probabilities").select_option("on")
    ask(page, "Say hello.")
    page.locator(".probabilities summary").click()
    assert page.locator(".probabilities .plain").inner_text().strip() == answers(page).inner_text().strip()
    assert "%" in page.locator(".token").first.get_attribute("title")
    page.locator(".token").first.click()  # a phone has no tooltips
    assert "%" in page.locator(".alternatives .chosen").inner_text()


@pytest.mark.rare
def test_importing_a_file_twice_duplicates_nothing(page, tmp_path):
    answer_with(page, "It is a fruit.")
    ask(page, "What is a quince?")
    with page.expect_download() as download:
        page.locator("#export-all").click()
    file = tmp_path / "saved.json"
    download.value.save_as(file)
    for _ in range(2):
        page.locator("#import-file").set_input_files(file)
        page.locator(".toast", has_text="One conversation is here already.").wait_for()
    assert_shows(page.locator(".conversation .open"), ["What is a quince?"])


@pytest.mark.rare
def test_page_and_terminal_read_each_others_files(page, tmp_path):
    terminal = Conversation(SamplingParams(temperature=0.25, stop=("END",)), "Be brief.")
    texts = ("Hi", "Hello.", "How are you?", "Well.")
    terminal.messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    call = {"id": "c1", "type": "function", "function": {"name": "feel", "arguments": "{}"}}
    terminal.messages[3:3] = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "fine", "tool_call_id": "c1", "name": "feel"},
    ]
    terminal.forget(1)
    file = tmp_path / "chat.json"
    terminal.save(file)
    page.locator("#import-file").set_input_files(file)
    page.get_by_role("button", name="Hi", exact=True).click()
    assert_shows(answers(page), ["Hello.", "", "Well."])
    assert page.locator(".call").count() == 2
    assert page.locator(".dropped").count() == 1
    page.keyboard.press("Control+,")
    assert page.get_by_label("System prompt").input_value() == "Be brief."
    assert page.get_by_label("Temperature").first.input_value() == "0.25"
    page.keyboard.press("Escape")
    with page.expect_download() as download:
        page.get_by_label("Save Hi as a file").click()
    saved = tmp_path / "saved.json"
    download.value.save_as(saved)
    back = Conversation(SamplingParams())
    back.load(saved)
    assert back == terminal


@pytest.mark.rare
def test_conversation_that_crashed_the_tab_is_not_reopened(page):
    answer_with(page, "Poison.")
    ask(page, "Give me poison.")
    id = page.evaluate("JSON.parse(localStorage.getItem('woolly.current'))")
    assert page.evaluate("localStorage.getItem('woolly.opening')") is None
    # As a crash leaves it: the mark is there, and nothing removed it.
    page.evaluate("id => addEventListener('pagehide', () => localStorage['woolly.opening'] = JSON.stringify(id))", id)
    reload(page)
    page.locator(".start").wait_for()
    assert "is not opened again" in page.locator(".toast").inner_text()
    page.get_by_role("button", name="Give me poison.", exact=True).click()
    assert_shows(answers(page), ["Poison."])


@pytest.mark.rare
def test_toast_covers_neither_the_error_nor_the_input(page):
    page.route(CHAT, lambda route: route.fulfill(status=400, content_type="application/json", body="{}"))
    ask(page, "Go.")
    for size in ({"width": 1100, "height": 400}, {"width": 360, "height": 500}):
        page.set_viewport_size(size)
        page.locator("#import-file").set_input_files({"name": "x", "mimeType": "text/plain", "buffer": b"x"})
        toast = page.locator(".toast").bounding_box()
        page.locator(".problem").scroll_into_view_if_needed()
        visible = page.locator("#scroller").bounding_box()
        assert visible["y"] + visible["height"] <= toast["y"]
        assert toast["y"] + toast["height"] <= page.locator("#composer").bounding_box()["y"]
    page.set_viewport_size({"width": 1100, "height": 760})


@pytest.mark.rare
def test_unsupported_file_is_grey_with_the_reason(page):
    reason = "architecture 'gemma3' is not supported"

    def models(route):
        listed = route.fetch().json()
        given = listed if isinstance(listed, list) else listed["data"]
        route.fulfill(
            json=[{**given[0], "name": "gemma", "loaded": False, "state": None, "unsupported": reason}, *given]
        )

    page.route("**/api/v1/models", models)
    page.locator("#model").click()
    row = page.locator("#models [data-state=unsupported]")
    row.wait_for()
    assert reason in row.inner_text() and row.locator("button").count() == 1
    row.locator("button").dispatch_event("click")
    assert page.locator("#model-name").inner_text() != "gemma"


@pytest.mark.rare
def test_panel_requests_statistics_of_the_selected_model(page):
    with page.expect_request(lambda request: "/performance/stats" in request.url) as asked:
        page.locator("#performance").click()
    assert asked.value.url.endswith(f"?model={page.locator('#model-name').inner_text()}")


@pytest.mark.rare
def test_truncated_reasoning_is_continued(page):
    thought = chunk(reasoning_content="Let me") + ending("length") + DONE
    bodies = reply_with(page, thought, chunk(reasoning_content=" see.") + chunk(content="Yes.") + ending("stop") + DONE)
    ask(page, "Is it?")
    page.get_by_role("button", name="Continue").click()
    settled(page)
    assert bodies[1]["messages"][1] == {"role": "assistant", "content": "", "reasoning_content": "Let me"}
    assert page.locator(".reasoning .plain").text_content() == "Let me see."
    assert_shows(answers(page), ["Yes."])


@pytest.mark.rare
def test_second_answer_in_a_row_does_not_continue_the_first(page):
    bodies = answer_with(page, "First.", "Second.", "Third.")
    ask(page, "One?")
    ask(page, "Two?")
    page.locator(".message.user").nth(1).hover()
    page.get_by_label("Delete message").nth(1).click()
    page.get_by_label("Answer again").nth(1).click()
    settled(page)
    assert bodies[-1]["continue_final_message"] is False
    assert_shows(answers(page), ["First.", "Third."])
