"""List of models on the page: models that do not chat, a lost server, and a server without a reader of PDF files."""

import httpx
import pytest

from tests.cases.tiny import TINY, write_tiny
from tests.serving.pages.conftest import ask, served, settled, until
from tests.serving.pages.test_pdfs import DATA, DROP
from woolly.serving import Settings, create_app

pytestmark = pytest.mark.rare


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("picker")
    write_tiny(TINY["llama"], folder / "one.gguf")
    settings = Settings(models_dir=folder, sessions_file=folder / "s.db", threads=1, ctx_size=512, n_predict=4)
    with served(create_app(settings)) as url:
        yield url


def test_embedder_is_listed_last_and_is_not_chosen(open_page, url):
    page = open_page(url)
    models = httpx.get(f"{url}/api/v1/models").json()
    embedder = {**models[0], "name": "embedder", "aliases": [], "capabilities": ["embedding"]}
    page.route("**/api/v1/models", lambda route: route.fulfill(json=[embedder, *models]))
    page.reload()
    until(page, lambda: page.locator("#model-name").inner_text() == "one")
    page.locator("#model").click()
    assert page.locator("#model-list .name").all_inner_texts() == ["one", "embedder"]
    assert "embedding model, no chat" in page.locator("#model-list li").last.inner_text()
    page.locator('[data-action="choose embedder"]').click(force=True)
    page.keyboard.press("Escape")
    assert page.locator("#model-name").inner_text() == "one"


def test_lost_server_shows_no_green_dot(open_page, url):
    page = open_page(url)
    until(page, lambda: page.locator("#model").get_attribute("data-state") in ("unloaded", "ready"))
    page.route("**/api/v1/health", lambda route: route.abort())
    page.locator("#model").click()  # asks again
    until(page, lambda: page.locator("#model").get_attribute("data-state") == "unreachable")
    assert page.locator("#model-state").inner_text() == "no connection"
    page.watch.wrong.clear()


def test_pdf_file_is_rejected_at_attaching_without_a_reader(open_page, url):
    page = open_page(url)
    reason = "PDF files need the package pypdfium2: pip install pypdfium2"
    props = httpx.get(f"{url}/props").json()
    page.route("**/props?*", lambda route: route.fulfill(json={**props, "pdf_reason": reason}))
    page.reload()
    until(page, lambda: "PDF" not in (page.locator("#attach").get_attribute("title") or "PDF"))
    page.evaluate(DROP, [DATA])
    until(page, lambda: page.locator(".toast").all_inner_texts() == [f"wool.pdf cannot be attached: {reason}"])
    assert page.locator("#files li").count() == 0


def test_edited_first_question_renames_the_conversation(open_page, url):
    page = open_page(url)
    ask(page, "Alpha")
    until(page, lambda: page.locator(".conversation .open").all_inner_texts() == ["Alpha"])
    settled(page)
    page.locator(".message.user").hover()
    page.locator(".message.user").get_by_role("button", name="Edit").click()
    page.locator(".edit textarea").fill("Beta")
    page.locator(".edit").get_by_role("button", name="Send").click()
    until(page, lambda: page.locator(".conversation .open").all_inner_texts() == ["Beta"])


def test_api_reference_is_dark_on_a_dark_system(open_page, url):
    page = open_page(url)
    page.emulate_media(color_scheme="dark")
    page.goto(f"{url}/docs")
    scheme = "getComputedStyle(document.documentElement).colorScheme"
    assert page.evaluate(scheme) == "light dark"
