"""A real server and a real browser, Debian's Chromium by Playwright; skipped with the reason where one is missing."""

import contextlib
import json
import os
import shutil
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import uvicorn

from tests.serving.conftest import SLOW_MAIN, serving

WAIT = 120_000  # milliseconds; a busy machine answers slowly


@pytest.fixture(scope="session")
def server(smollm2, tmp_path_factory):
    with serving(smollm2, tmp_path_factory.mktemp("web"), "-n", "60", "--temp", "0", main=SLOW_MAIN) as running:
        yield running


@contextlib.contextmanager
def served(app):
    """An app of this process on a free port, by a thread; quicker than a process, where its start is not the matter."""
    config = uvicorn.Config(app, port=0, log_config=None, lifespan="on")
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run)
    thread.start()
    try:
        while not running.started:
            assert thread.is_alive()
            time.sleep(0.01)
        app.state.health.set("ready")
        yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}"
    finally:
        running.should_exit = True
        thread.join()


# One browser per file and not per session: while Playwright runs, its event loop is the thread's.
@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is missing: pip install playwright")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("Chromium is missing: sudo apt-get install -y chromium")
    flags = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]  # a microphone that beeps
    flags += ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as running:
        launched = running.chromium.launch(executable_path=path, args=flags)
        yield launched
        launched.close()


class Watch:
    """A page until the watch ends, and what it did that no page of ours may do."""

    def __init__(self, page, url):
        self.page, self.url = page, url
        self.wrong = []
        self.requests = []
        self.finished = []
        self.failed = []  # also those that were given up because the page was left
        page.set_default_timeout(WAIT)
        self._listeners = {
            "request": self._request,
            "requestfinished": lambda request: self.finished.append(request),
            "requestfailed": lambda request: self.failed.append(request),
            "console": self._console,
            "pageerror": lambda error: self.wrong.append(f"error: {error}"),
            "dialog": lambda dialog: (self.wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()),
        }
        for event, listener in self._listeners.items():
            page.on(event, listener)

    def end(self):
        for event, listener in self._listeners.items():
            self.page.remove_listener(event, listener)

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


def opened(page, url):
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
        pages.append(opened(context.new_page(), url))
        return pages[-1]

    yield open_one
    for page in pages:
        page.context.close()
        assert not page.watch.wrong


# One tab for all tests of a file: a new one takes twice as long as to open the page once more.
@pytest.fixture(scope="module")
def tab(browser):
    context = browser.new_context(**DESKTOP)
    yield context.new_page()
    context.close()


FORGET = """() => new Promise(resolve => {
  localStorage.clear();
  sessionStorage.clear();
  const request = indexedDB.open("woolly");
  request.onsuccess = () => {
    const work = request.result.transaction("conversations", "readwrite");
    work.objectStore("conversations").clear();
    work.oncomplete = resolve;
  };
})"""


@pytest.fixture
def page(tab, server):
    """The page of the server as one finds it who comes for the first time."""
    opened(tab, server.url)
    tab.locator("#model[data-state=ready]").wait_for()
    yield tab
    tab.unroute_all()
    tab.watch.end()
    tab.goto(f"{server.url}/health")  # ends what runs, and writes what it keeps no more
    tab.evaluate(FORGET)
    assert not tab.watch.wrong


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


KEPT = """async () => {
  const stamp = document.querySelector("script[type=module]").src.replace("js/app/main.js", "");
  return JSON.stringify(await (await import(`${stamp}js/app/store.js`)).readAll());
}"""


def kept(page):
    """Content of the page's database, after pending writes."""
    return page.evaluate(KEPT)


def reload(page):
    """Opens the page once more, when all that it keeps is written."""
    kept(page)
    page.reload()
    page.locator("#model[data-state]").wait_for()


def until(page, holds):
    """Waits for what a busy machine may be late with."""
    end = time.monotonic() + WAIT / 1000
    while not holds():
        assert time.monotonic() < end
        page.wait_for_timeout(20)


def assert_shows(locator, texts):
    """These texts and no others; lists are drawn with the next frame, which a busy machine may be late with."""
    end = time.monotonic() + WAIT / 1000
    while locator.all_inner_texts() != texts and time.monotonic() < end:
        locator.page.wait_for_timeout(20)
    assert locator.all_inner_texts() == texts


def assert_focus(page, id):
    until(page, lambda: page.evaluate("document.activeElement.id") == id)


def answers(page):
    return page.locator(".message.assistant .markdown")


STATIC = Path(__file__).resolve().parents[3] / "woolly" / "serving" / "pages" / "web" / "static"
