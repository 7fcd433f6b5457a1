"""A real server and a real browser, Debian's Chromium by Playwright; skipped with the reason where one is missing."""

import json
import os
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.cases.tiny import TINY, write_tiny
from tests.serving.conftest import serving

WAIT = 120_000  # milliseconds; a busy machine answers slowly


@pytest.fixture(scope="session")
def server(smollm2, tmp_path_factory):
    with serving(smollm2, tmp_path_factory.mktemp("web"), "-n", "60", "--temp", "0") as running:
        yield running


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    return write_tiny(TINY["llama"], tmp_path_factory.mktemp("tiny") / "tiny.gguf")


# One browser per file and not per session: while Playwright runs, its event loop is the thread's.
@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is missing: pip install playwright")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("Chromium is missing: sudo apt-get install -y chromium")
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as running:
        launched = running.chromium.launch(executable_path=path, args=flags)
        yield launched
        launched.close()


class Watch:
    """A page, and what it did that no page of ours may do."""

    def __init__(self, page, url):
        self.page, self.url = page, url
        self.wrong = []
        self.requests = []
        page.set_default_timeout(WAIT)
        page.on("request", self._request)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (self.wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))

    def _request(self, request):
        self.requests.append(request)
        address = urlsplit(request.url)
        if address.scheme in ("http", "https", "ws", "wss") and address.netloc != urlsplit(self.url).netloc:
            self.wrong.append(f"another host: {request.url}")

    def _console(self, message):
        # Chromium writes a line for every status above 399, and those are part of the tests.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.wrong.append(f"console: {message.text}")

    def asked(self, path):
        return [request for request in self.requests if urlsplit(request.url).path == path]


DESKTOP = {"viewport": {"width": 1100, "height": 760}, "reduced_motion": "reduce"}


def opened(context, url):
    page = context.new_page()
    page.watch = Watch(page, url)
    page.goto(url)
    page.locator("#model[data-state]").wait_for()
    return page


@pytest.fixture
def open_page(browser):
    """Opens the page of a server in a profile of its own. What went wrong in it fails the test at its end."""
    pages = []

    def open_one(url, **options):
        context = browser.new_context(**{**DESKTOP, **options})
        pages.append(opened(context, url))
        return pages[-1]

    yield open_one
    for page in pages:
        page.context.close()
        assert not page.watch.wrong


@pytest.fixture(scope="module")
def profile(browser):
    """One for all pages of a file, because the second page has the files of the first."""
    context = browser.new_context(**DESKTOP)
    yield context
    context.close()


FORGET = """() => new Promise(resolve => {
  localStorage.clear();
  const request = indexedDB.open("woolly");
  request.onsuccess = () => {
    const work = request.result.transaction("conversations", "readwrite");
    work.objectStore("conversations").clear();
    work.oncomplete = resolve;
  };
})"""


@pytest.fixture
def page(profile, server):
    page = opened(profile, server.url)
    page.locator("#model[data-state=ready]").wait_for()
    yield page
    page.evaluate(FORGET)
    page.close()
    assert not page.watch.wrong


def event(data):
    return f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n"


def chunk(**delta):
    return event({"model": "fake", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})


def answer_with(page, *texts, reasoning=""):
    """From here on the page gets these texts as answers, in turn, as the server would stream them; gives the bodies."""
    bodies = []
    last = event({"model": "fake", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})

    def reply(route):
        bodies.append(route.request.post_data_json)
        text = texts[min(len(bodies), len(texts)) - 1]
        parts = [chunk(role="assistant", content="")]
        parts += [chunk(reasoning_content=reasoning)] if reasoning else []
        parts += [chunk(content=text[at : at + 7]) for at in range(0, len(text), 7)]
        body = "".join([*parts, last, event("[DONE]")])
        route.fulfill(status=200, content_type="text/event-stream", body=body)

    page.route("**/v1/chat/completions", reply)
    return bodies


def refuse_with(page, status, code, message, **headers):
    """From here on the page gets this error, as the server would tell it."""
    body = json.dumps({"error": {"message": message, "type": "x", "param": None, "code": code}})
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(status=status, content_type="application/json", body=body, headers=given),
    )


def ask(page, text):
    """Types a message and sends it; waits until the answer is complete, or did not come."""
    page.locator("#message").fill(text)
    page.keyboard.press("Enter")
    settled(page)


def settled(page):
    page.locator("#send[aria-label=Send]").wait_for()
    page.locator(".message.running").wait_for(state="detached")


def answers(page):
    return page.locator(".message.assistant .markdown")


STATIC = Path(__file__).resolve().parents[2] / "woolly" / "serving" / "web" / "static"
