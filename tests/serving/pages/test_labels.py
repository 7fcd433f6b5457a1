"""Words of the page: facts of a model, names beside icons, sentences of the panel."""

import re

import pytest

from tests.serving.pages.conftest import answer_with, ask, refuse_with, until

pytestmark = pytest.mark.rare


def test_picker_describes_a_model_and_whether_it_fits(open_page, server):
    page = open_page(server.url)
    page.locator("#model[data-state=ready]").wait_for()
    page.locator("#model").click()
    facts = page.locator("#models .facts")
    assert re.fullmatch(r"loaded · 135 M parameters · Q4_1 · 9\d\.\d MB · context 2,048", facts.inner_text())

    def reply(route):
        listed = route.fetch().json()
        state = {"loaded": False, "state": "unloaded", "fits": "too large"}
        route.fulfill(json=[{**model, **state} for model in listed])

    page.route("**/api/v1/models", reply)
    page.keyboard.press("Escape")
    page.locator("#model").click()
    until(page, lambda: facts.inner_text().endswith("too large for this machine's memory"))
    assert facts.inner_text().startswith("not loaded · 135 M parameters")
    sentence = "For this conversation. Empty fields use the server's values, shown in gray."
    assert page.locator("#settings-page .hint").text_content() == sentence
    assert "135 M parameters" in page.locator(".start .about").inner_text()


def test_icons_have_labels_in_the_bar_and_in_the_phone_drawer(open_page, server):
    page = open_page(server.url)
    for id in ("performance", "settings"):
        assert page.locator(f"#{id}").inner_text() == id.capitalize()
    unnamed = """() => [...document.querySelectorAll("button:not(#send), a")].filter(
      node => !node.getAttribute("aria-label") && !node.textContent.trim()).map(node => node.id)"""
    assert page.evaluate(unnamed) == []
    phone = open_page(server.url, viewport={"width": 390, "height": 780})
    assert phone.locator("#menu-settings").is_hidden()
    phone.locator("#menu").click()
    words = [word for word in phone.locator("#sidebar footer .word").all_inner_texts() if word]
    assert words == ["Import", "Export all", "Performance", "Settings", "Theme", "API", "Keys"]
    phone.locator("#menu-settings").click()
    assert phone.locator("#settings-page").is_visible()
    assert phone.locator("#sidebar").is_hidden()
    phone.keyboard.press("Escape")
    assert phone.locator("#panel").is_hidden()


def test_command_in_an_error_is_code(page):
    refuse_with(page, 404, "model_not_found", "there is no model here; run `woolly pull smollm2`, or ask for ` another")
    page.locator("#message").fill("Hi")
    page.keyboard.press("Enter")
    problem = page.locator(".problem p")
    problem.wait_for()
    assert problem.locator("code").all_inner_texts() == ["woolly pull smollm2"]
    assert problem.inner_text() == "there is no model here; run woolly pull smollm2, or ask for ` another."


def test_selected_model_is_announced_before_its_neighbour(page):
    page.evaluate("document.getElementById('model-beside').textContent = 'beside ' + 'a-long-name-'.repeat(20)")
    cut = "id => { const one = document.getElementById(id); return one.scrollWidth > one.clientWidth; }"
    assert page.evaluate(cut, "model-beside") and not page.evaluate(cut, "model-name")


def test_no_line_break_separates_a_number_from_its_unit(page):
    ask(page, "Hi")
    facts = page.locator(".assistant .figures .fact")
    assert re.fullmatch(r"[\d.]+ tokens/s", facts.first.inner_text())
    assert re.fullmatch(r"first after [\d.]+ m?s", facts.last.inner_text())
    spaces = facts.evaluate_all(
        "all => all.map(one => getComputedStyle(one).whiteSpaceCollapse + getComputedStyle(one).textWrapMode)"
    )
    assert spaces == ["collapsenowrap"] * facts.count()


def test_footnote_number_is_on_the_line_of_its_text(page):
    answer_with(page, "Wool.[^1]\n\n[^1]: A footnote.")
    ask(page, "Hi")
    number, text = (page.locator(f".footnote > {one}").bounding_box() for one in ("sup", "span"))
    assert number["y"] + number["height"] > text["y"] + text["height"] / 2
