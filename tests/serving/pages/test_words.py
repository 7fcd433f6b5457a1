"""Words of the page: facts of a model, names beside icons, sentences of the panel."""

import re

from tests.serving.pages.conftest import until


def test_the_picker_tells_what_a_model_is_and_whether_it_fits(open_page, server):
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
    sentence = "For this conversation. Empty fields use the server's values, which are shown in grey."
    assert page.locator("#settings-page .hint").text_content() == sentence
    assert "135 M parameters" in page.locator(".start .about").inner_text()


def test_icons_have_words_in_the_bar_and_on_a_phone_in_the_drawer(open_page, server):
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
