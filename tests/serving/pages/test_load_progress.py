"""Progress display before the first token: model loading and prompt processing."""

import re
import threading

import pytest

from tests.serving.pages.conftest import ask, served, settled, until
from woolly.runtime.cpu.program import CpuProgram
from woolly.serving import Settings, create_app
from woolly.serving.model_manager.loader import open_model

pytestmark = pytest.mark.rare


@pytest.fixture
def slow(tiny_model, tmp_path, monkeypatch):
    """A server that opens its model when it is let go, and takes a fifth of a second for each step until then."""
    gate, brake = threading.Event(), threading.Event()
    plain = CpuProgram.compute

    def compute(*given):
        brake.wait(0.2)
        return plain(*given)

    def open_late(path, options):
        assert gate.wait(120)
        return open_model(path, options)

    monkeypatch.setattr(CpuProgram, "compute", compute)
    settings = Settings(
        models_dir=tiny_model.parent, sessions_file=tmp_path / "s.db", threads=1, batch_size=8, n_predict=40
    )
    app = create_app(settings)
    app.state.models.open_model = open_late
    with served(app) as url:
        yield url, gate, brake
        gate.set()
        brake.set()


def test_page_shows_model_loading_and_prompt_progress(open_page, slow):
    url, gate, brake = slow
    page = open_page(url)
    state, note = page.locator("#model-state"), page.locator("#composer-note")
    until(page, lambda: state.inner_text() == "not loaded")
    page.locator("#message").fill("a b c d e f g h i j k l m n o p q r s t u v w x y z " * 3)
    page.keyboard.press("Enter")
    until(page, lambda: re.fullmatch(r"loading… opening", state.inner_text()))
    until(page, lambda: re.fullmatch(r"Loading \S+ … opening", note.inner_text()))
    bar = page.locator("#progress")
    bar.wait_for()
    assert bar.get_attribute("aria-valuenow") is None  # opening has no share
    gate.set()
    until(page, lambda: re.fullmatch(r"Reading the prompt: \d+ / \d+ tokens", note.inner_text()))
    until(page, lambda: bar.is_visible() and (bar.get_attribute("aria-valuenow") or "").isdigit())
    page.locator("#model[data-state=ready]").wait_for()
    assert page.locator(".message.running").count() == 1
    brake.set()
    settled(page)
    assert page.locator("#model").get_attribute("data-state") == "ready"
    until(page, bar.is_hidden)


def test_share_of_loaded_weights_is_shown_until_complete(open_page, slow):
    url, gate, brake = slow
    gate.set()
    brake.set()
    page = open_page(url)
    ask(page, "hi")
    page.locator("#model[data-state=ready]").wait_for()
    shares = [0.4, 0.4, None]

    def reply(route):
        listed = route.fetch().json()
        share = shares.pop(0) if len(shares) > 1 else shares[0]
        route.fulfill(json=[{**model, "progress": share} for model in listed])

    page.route("**/api/v1/models", reply)
    page.locator("#model").click()
    until(page, lambda: page.locator("#model-state").inner_text() == "loading… 40 %")
    page.locator("#model[data-state=ready]").wait_for()
