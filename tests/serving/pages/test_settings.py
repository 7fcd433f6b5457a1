"""Settings that cannot be sent: what the page says, and what it offers."""

import pytest

from tests.serving.pages.conftest import answer_with, answers, ask, assert_shows, settled

pytestmark = pytest.mark.rare


def test_invalid_setting_is_not_sent_and_a_button_opens_it(page):
    bodies = answer_with(page, "Well.")
    page.keyboard.press("Control+,")
    page.get_by_label("Max tokens", exact=True).fill("-5")
    page.locator("summary", has_text="Answer").click()
    page.keyboard.press("Escape")
    ask(page, "Go.")
    assert page.locator(".problem p").inner_text() == "Max tokens is -5; expected at least 1." and not bodies
    shown = page.locator(".problem button:visible")
    assert_shows(shown, ["Open settings"])  # to ask again would fail again
    shown.click()
    assert page.evaluate("document.activeElement.name || document.activeElement.title") == "max_tokens"
    page.keyboard.press("Control+A")
    page.keyboard.type("5")
    assert_shows(shown, ["Try again"])
    page.get_by_label("Structured output").select_option("regex")
    page.get_by_label("Regular expression").fill("")
    assert_shows(shown, ["Open settings"])
    page.get_by_label("Structured output").select_option("")
    shown.click()
    settled(page)
    assert_shows(answers(page), ["Well."])
    assert bodies[0]["max_tokens"] == 5
    page.get_by_label("Structured output").select_option("json_schema")
    page.get_by_label("JSON schema").fill("")
    page.keyboard.press("Escape")
    ask(page, "Go on.")
    assert "structured output is empty" in page.locator(".problem p").inner_text()
    shown.click()
    assert page.evaluate("document.activeElement.dataset.setting") == "pattern" and len(bodies) == 1
