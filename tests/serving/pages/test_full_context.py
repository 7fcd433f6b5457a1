"""A context that is full: what the page says, and what it offers."""

import json

import pytest

from tests.serving.pages.conftest import answers, ask, assert_shows, chunk, event, reload, settled
from tests.serving.pages.test_messages import DONE, ending, questions, reply_with, says
from woolly.chat.compaction import COMPACTION_PROMPT, summary_text

pytestmark = pytest.mark.rare

FULL = {"message": "the prompt has 171 tokens, but the context holds 160", "code": "context_length_exceeded"}


def test_full_context_offers_to_drop_the_oldest_turns(page):
    timings = {"predicted_n": 10, "predicted_per_second": 5, "prompt_ms": 1, "prompt_n": 2000, "cache_n": 20}
    good = [chunk(content=text) + ending("stop", timings=timings) + DONE for text in ("A.", "B.", "C.", "D.")]
    bodies = reply_with(page, good[0], good[1], FULL, good[2], FULL, good[3])
    page.keyboard.press("Control+,")
    page.get_by_label("System prompt").fill("Be brief.")
    ask(page, "One? " * 40)
    assert page.locator("#context").get_attribute("aria-valuenow") == "2030"
    assert "nearly" in page.locator("#context").get_attribute("class")
    ask(page, "Two?")
    ask(page, "Three?")
    assert page.locator(".problem p").inner_text() == "Too long: 171 tokens, the model takes 160."
    assert page.get_by_role("button", name="Try again").count() == 0
    page.get_by_role("button", name="Drop the oldest turns").click()
    settled(page)
    assert_shows(answers(page), ["A.", "B.", "C."])
    assert [one["content"] for one in bodies[3]["messages"]] == ["Be brief.", "Two?", "B.", "Three?"]
    assert page.locator(".dropped").count() == 1
    # From then on it needs no click, also after a reload.
    reload(page)
    answers(page).first.wait_for()
    ask(page, "Four?")
    assert [one["content"] for one in bodies[-1]["messages"]][:2] == ["Be brief.", "Three?"]
    assert page.locator(".problem").count() == 0 and questions(page).count() == 4


def test_summary_replaces_older_turns_and_can_be_undone(page):
    timings = {"predicted_n": 10, "predicted_per_second": 5, "prompt_ms": 1, "prompt_n": 2000, "cache_n": 20}
    texts = ("A.", "B.", "Sheep.", "C.", "E.", "D.")
    good = [chunk(content=text) + ending("stop", timings=timings) + DONE for text in texts]
    bodies = reply_with(page, good[0], good[1], FULL, *good[2:])
    page.keyboard.press("Control+,")
    page.get_by_label("System prompt").fill("Be brief.")
    ask(page, "One?")
    ask(page, "Two?")
    ask(page, "Three?")
    page.get_by_role("button", name="Compact and continue").click()
    settled(page)
    asked = bodies[3]
    assert asked["messages"][-1] == {"role": "user", "content": COMPACTION_PROMPT} and asked["max_tokens"] <= 1024
    assert asked["reasoning_budget"] == asked["max_tokens"] // 2  # thoughts leave room for the note
    assert [one["content"] for one in asked["messages"][:-1]] == ["Be brief.", "One?", "A.", "Two?", "B."]
    noted = f"Be brief.\n\n{summary_text('Sheep.')}"
    assert [one["content"] for one in bodies[4]["messages"]] == [noted, "Three?"]
    questions(page).last.hover()
    page.get_by_role("button", name="Edit message").last.click()  # the note stands for the same turns
    page.locator(".edit textarea").fill("Other?")
    page.keyboard.press("Enter")
    settled(page)
    assert [one["content"] for one in bodies[5]["messages"]] == [noted, "Other?"]
    reload(page)  # the note is kept
    answers(page).first.wait_for()
    page.locator(".compacted summary").click()
    assert page.locator(".compacted p").inner_text() == "Sheep." and questions(page).count() == 3
    page.get_by_role("button", name="Undo").click()
    ask(page, "Four?")
    assert [one["content"] for one in bodies[-1]["messages"]][:2] == ["Be brief.", "One?"]
    assert page.locator(".compacted").count() == 0


def test_page_offers_to_compact_a_half_full_context_and_explains_if_it_cannot(page):
    timings = {"predicted_n": 10, "predicted_per_second": 5, "prompt_ms": 1, "prompt_n": 2000, "cache_n": 20}
    good = [chunk(content=text) + ending("stop", timings=timings) + DONE for text in ("A.", "B.", " ", "Sheep.", "C.")]
    bodies = reply_with(page, *good)
    ask(page, "One?")
    compact = page.get_by_role("button", name="Compact", exact=True)
    assert not compact.is_visible()  # one turn alone
    ask(page, "Two?")
    compact.click()
    settled(page)
    assert page.locator(".problem p").inner_text() == "The model did not write a summary."
    page.get_by_role("button", name="Try again").click()
    page.locator(".compacted").wait_for()
    assert not compact.is_visible()
    ask(page, "Three?")
    assert [one["content"] for one in bodies[-1]["messages"]] == [summary_text("Sheep."), "Two?", "B.", "Three?"]


def test_single_too_long_message_can_be_edited(page):
    long = "the prompt has 9032 tokens (a chat template's included), but the context holds 8192 and at least one"
    bodies = reply_with(page, {**FULL, "message": f"maximum context length is 8192 tokens: {long}"}, says("Good."))
    ask(page, "word " * 50)
    assert page.locator(".problem p").inner_text() == "Too long: 9,032 tokens, the model takes 8,192."
    assert_shows(page.locator(".problem button"), ["Edit message"])
    page.get_by_role("button", name="Edit message").last.click()
    page.locator(".edit textarea").fill("Short.")
    page.keyboard.press("Enter")
    settled(page)
    assert [one["content"] for one in bodies[1]["messages"]] == ["Short."]


def test_answer_that_fills_the_context_can_continue_without_the_oldest_turns(page, server):
    size = page.evaluate("fetch('api/v1/models').then(r => r.json())")[0]["context_length"]
    timings = {"predicted_n": 10, "predicted_per_second": 5, "prompt_ms": 1, "prompt_n": size - 10, "cache_n": 0}
    full = {"model": server.name, "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}], "timings": timings}
    cut = chunk(content="Cut").replace('"fake"', json.dumps(server.name)) + event(full) + DONE
    bodies = reply_with(page, cut, cut, says(" short."))
    ask(page, "One? " * 40)
    assert page.locator(".figures .cut").inner_text() == "truncated: the context is full"
    assert page.locator(".figures button").count() == 0
    ask(page, "Two?")
    page.get_by_role("button", name="Drop the oldest turns and continue").click()
    settled(page)
    assert answers(page).last.inner_text() == "Cut short."
    assert [one["content"] for one in bodies[2]["messages"]] == ["Two?", "Cut"]
