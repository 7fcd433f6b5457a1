"""Robustness of the page: markup from a model, errors from a server, small screens, dark mode."""

import re
from dataclasses import replace

import httpx
import pytest

from tests.cases.tiny import TINY, write_tiny
from tests.serving.pages.conftest import (
    DESKTOP,
    answer_with,
    answers,
    ask,
    assert_focus,
    assert_shows,
    refuse_with,
    reload,
    served,
    settled,
    until,
)
from woolly.serving import Settings, create_app

HOSTILE = """\
# <img src=x onerror="window.hacked=1"> in a heading

<script>window.hacked = 1</script>
<svg onload="window.hacked=1"></svg> and <iframe srcdoc="<script>parent.hacked=1</script>"></iframe>

[click](javascript:window.hacked=1) [data](data:text/html,<script>hacked=1</script>) [tab](java\tscript:hacked=1)
[upper](JaVaScRiPt:hacked=1) [file](file:///etc/passwd) [blob](blob:http://127.0.0.1/x) [here](/api/v1/models)
<javascript:hacked=1> ![image](http://tracker.example/pixel.png) [fine](https://example.org/a_b "title")

- <b onclick=hacked=1>item</b>

| <td onmouseover=hacked=1> | b |
|---|---|
| `<script>hacked=1</script>` | **<u>bold</u>** |

```html"><script>hacked=1</script>
<script>window.hacked = 1</script>
```

```<img/src=x/onerror=hacked=1>
"""


def test_model_output_is_text_and_never_markup(page):
    answer_with(page, HOSTILE, reasoning="<img src=x onerror=hacked=1></details><script>hacked=1</script>")
    ask(page, "<img src=x onerror='window.hacked=1'>")
    page.locator(".reasoning summary").click()
    assert page.evaluate("window.hacked") is None
    thread = page.locator("#thread")
    assert thread.locator("script, iframe, img, object, embed, style, link, form, b, u, td[onmouseover]").count() == 0
    handlers = "[...document.querySelectorAll('#thread *')].flatMap(n => [...n.attributes]).map(a => a.name)"
    assert not [name for name in page.evaluate(handlers) if name.startswith("on") or name in ("style", "srcdoc")]
    assert [link.get_attribute("href") for link in thread.locator("a").all()] == [
        "http://tracker.example/pixel.png",
        "https://example.org/a_b",
    ]
    assert all("noopener" in link.get_attribute("rel") for link in thread.locator("a").all())
    text = answers(page).inner_text()
    for shown in ("<script>window.hacked = 1</script>", "[click](javascript:window.hacked=1)", "<b onclick=hacked=1>"):
        assert shown in text
    assert page.locator(".message.user .plain").inner_text() == "<img src=x onerror='window.hacked=1'>"
    reload(page)
    answers(page).wait_for()
    assert page.evaluate("window.hacked") is None
    # The title of the conversation is the model's question in a list, and in the window's name.
    assert page.locator(".conversation .open").inner_text() == "<img src=x onerror='window.hacked=1'>"


def test_injected_script_would_not_run(page):
    refused = page.evaluate(
        """() => new Promise(resolve => {
          document.addEventListener("securitypolicyviolation", event => resolve(event.violatedDirective));
          const node = document.createElement("script");
          try { node.text = "window.hacked = 1"; } catch { resolve("trusted types"); return; }
          document.body.append(node);
        })"""
    )
    assert refused in ("trusted types", "script-src-elem", "require-trusted-types-for")
    assert page.evaluate("window.hacked") is None
    page.watch.wrong = [line for line in page.watch.wrong if "TrustedScript" not in line]


ERRORS = [
    (429, "queue_full", "144 answers run", {"retry_after": "700"}, r"busy and its queue is full"),
    (503, "model_loading", "m is loading; try again", {"retry_after": "200"}, r"still being loaded"),
    (400, "invalid_request", "top_k is -5; a whole", {}, r"^top_k is -5; a whole\.$"),
]


def test_error_is_shown_below_the_message_which_stays(page):
    page.locator("#message").fill("A long and careful question.")
    for i, (status, code, message, headers, shown) in enumerate(ERRORS):
        refuse_with(page, status, code, message, **headers)
        page.keyboard.press("Enter") if i == 0 else page.get_by_role("button", name="Try again").click()
        problem = page.locator(".problem")
        problem.filter(has_text=re.compile(shown.strip("^$"))).wait_for()
        assert re.search(shown, problem.locator("p").inner_text())
        assert problem.get_attribute("role") == "alert"
        if headers:
            assert re.match(r"Try again in \d+ s", problem.locator("button").inner_text())
        assert_shows(page.locator(".message.user .plain"), ["A long and careful question."])
        page.unroute("**/v1/chat/completions")
    answer_with(page, "Here it is.")
    page.get_by_role("button", name="Try again").click()
    settled(page)
    assert_shows(answers(page), ["Here it is."])
    assert_shows(page.locator(".problem"), [])


@pytest.mark.rare
def test_after_an_error_no_answer_is_pending(page):
    said = "document.getElementById('announcer').textContent"
    held = []
    page.route("**/v1/chat/completions", lambda route: held.append(route))
    page.locator("#message").fill("Go.")
    page.keyboard.press("Enter")
    until(page, lambda: held and page.evaluate(said) == "Waiting for the answer")
    page.keyboard.press("Control+K")  # another conversation waits for nothing
    until(page, lambda: page.evaluate(said) == "")
    page.get_by_role("button", name="Go.", exact=True).click()
    until(page, lambda: page.evaluate(said) == "Waiting for the answer")
    held[0].fulfill(status=400, json={"error": {"message": "no", "code": "invalid_request"}})
    page.locator(".problem").wait_for()
    until(page, lambda: page.evaluate(said) == "")


def test_interrupted_answer_is_kept_and_marked(page):
    body = 'data: {"choices":[{"index":0,"delta":{"content":"Half of"}}]}\n\n'
    route = "**/v1/chat/completions"
    page.route(route, lambda one: one.fulfill(status=200, content_type="text/event-stream", body=body))
    ask(page, "Go.")
    assert answers(page).inner_text() == "Half of"
    assert "was interrupted" in page.locator(".problem").inner_text()
    page.unroute(route)
    reported = 'data: {"error": {"message": "the server is about to stop", "code": "server_stopping"}}\n\n'
    page.route(route, lambda one: one.fulfill(status=200, content_type="text/event-stream", body=body + reported))
    page.get_by_role("button", name="Try again").click()
    settled(page)
    assert "is stopping" in page.locator(".problem").inner_text()


def test_typed_text_survives_a_reload_and_a_stopped_server(page):
    page.locator("#message").fill("Half a thought")
    reload(page)
    page.locator("#model[data-state=ready]").wait_for()
    assert page.locator("#message").input_value() == "Half a thought"
    page.route(re.compile("/(api/)?v1/"), lambda route: route.abort())
    page.locator("#message").press("Enter")
    page.locator(".problem").wait_for()
    assert "cannot be reached" in page.locator(".problem").inner_text()
    assert page.locator("#banner").is_visible()
    assert page.locator(".message.user .plain").inner_text() == "Half a thought"
    page.unroute(re.compile("/(api/)?v1/"))
    page.locator("#banner").wait_for(state="hidden")
    reload(page)
    page.locator(".message.user").wait_for()
    assert page.locator(".message.user .plain").inner_text() == "Half a thought"


@pytest.mark.rare
def test_invalid_setting_is_reported_in_place(page):
    page.keyboard.press("Control+,")
    page.get_by_label("Max tokens", exact=True).fill("1.5")
    assert "expected an integer" in page.locator("small.wrong").inner_text()
    ask(page, "Go.")
    assert "expected an integer" in page.locator(".problem").inner_text()


@pytest.mark.rare
def test_panel_polls_only_while_it_is_open(page):
    stats = "/api/v1/performance/stats"
    assert not page.watch.asked(stats)
    page.locator("#performance").click()
    page.get_by_role("region", name="KV cache").get_by_text("tokens").wait_for()
    until(page, lambda: len(page.watch.asked(stats)) >= 2)
    assert page.get_by_role("meter", name="Memory bandwidth").get_attribute("aria-valuenow") is not None
    page.get_by_label("Close", exact=True).first.click()
    page.wait_for_timeout(300)
    n = len(page.watch.asked(stats))
    page.wait_for_timeout(1500)
    assert len(page.watch.asked(stats)) == n


@pytest.mark.rare
def test_panel_shows_the_gpu_and_its_memory(page):
    def with_gpu(route):
        reply = route.fetch()
        gpu = {"name": "NVIDIA H200", "backend": "cuda", "memory_bytes": 12e9, "memory_total_bytes": 140e9}
        route.fulfill(response=reply, json=reply.json() | {"device": gpu})

    page.route("**/api/v1/performance/stats*", with_gpu)
    page.locator("#performance").click()
    page.locator("#performance-figures dd", has_text="NVIDIA H200").wait_for()
    page.locator("#performance-figures dd", has_text="12 GB of 140 GB").wait_for()


WIDE = f"| a | b |\n|---|---|\n| {'wide ' * 60} | {'x' * 300} |\n\n```python\n{'x = 1; ' * 80}\n```\n\n{'long' * 200}"


def test_phone_shows_everything_without_horizontal_scrolling(open_page, server):
    phone = {"width": 360, "height": 640}
    page = open_page(server.url, viewport=phone, has_touch=True, is_mobile=True, device_scale_factor=2)
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(wide) == 0
    assert not page.locator("#sidebar").is_visible()
    answer_with(page, WIDE)
    page.locator("#message").fill("w" * 200)
    page.locator("#send").tap()
    settled(page)
    assert page.evaluate(wide) == 0
    assert page.evaluate("document.getElementById('scroller').scrollWidth") <= 360
    for button in ("#settings", "#performance"):
        page.locator(button).tap()
        page.locator("#panel").wait_for()
        assert page.evaluate(wide) == 0
        page.locator("#close-panel").tap()
    page.locator("#menu").tap()
    assert page.locator("#sidebar").is_visible()
    page.locator("#new-chat").tap()
    assert not page.locator("#sidebar").is_visible()
    assert page.locator(".start").is_visible()


def lightness(page):
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3


@pytest.mark.rare
def test_dark_mode_follows_the_system_and_the_stored_switch(open_page, server):
    page = open_page(server.url, color_scheme="dark")
    assert lightness(page) < 60
    page.locator("#theme").click()
    assert lightness(page) > 200
    reload(page)
    assert lightness(page) > 200
    page.locator("#theme").click()
    assert lightness(page) < 60


def tiny_app(model, folder, **settings):
    """An app whose answers are four tokens of noise."""
    given = {"threads": 1, "ctx_size": 64, "n_predict": 4, "sessions_file": folder / "sessions.db", **settings}
    return create_app(Settings(model=None if model is None else str(model), **given))


def test_page_asks_for_a_key_and_forgets_it_with_the_tab(open_page, tiny_model, tmp_path):
    with served(tiny_app(tiny_model, tmp_path, api_key=("s3cret",))) as url:
        page = open_page(url)
        box, go = page.get_by_label("Key", exact=True), page.get_by_role("button", name="Continue")
        box.fill("wrong")
        go.click()
        page.get_by_text("This key is not valid").wait_for()
        # It can be mended where it stands, and is kept nowhere.
        assert box.input_value() == "wrong" and box.get_attribute("aria-invalid") == "true"
        assert "wrong" not in page.evaluate("JSON.stringify(sessionStorage)")
        box.fill("wrong again")
        assert page.locator("#key-problem").inner_text() == ""
        go.click()
        page.get_by_text("no spaces").wait_for()
        # Who closes it sees why nothing is there, and finds it again.
        page.keyboard.press("Escape")
        assert page.locator("#model[data-state=locked]").inner_text().endswith("Key needed")
        assert page.locator(".start h2").inner_text() == "This server requires a key"
        page.get_by_role("button", name="Enter the key").click()
        page.keyboard.press("Escape")
        page.locator("#message").fill("Hi")
        page.keyboard.press("Enter")
        box.fill("s3cret")
        page.keyboard.press("Enter")
        page.locator("#model[data-state=ready]").wait_for()
        settled(page)
        assert answers(page).count() == 1 and page.locator(".problem").count() == 0
        assert "s3cret" not in page.evaluate("JSON.stringify(localStorage)")
        assert "s3cret" in page.evaluate("JSON.stringify(sessionStorage)")
        reload(page)
        page.locator("#model[data-state=ready]").wait_for()
        other = page.context.new_page()
        other.goto(url)
        other.get_by_label("Key", exact=True).wait_for()
        other.goto(f"{url}/docs")
        assert other.get_by_text("POST /v1/chat/completions").first.is_visible()
        # One that holds no more is said to be wrong at once.
        page.evaluate("sessionStorage.setItem('woolly.key', 'old')")
        reload(page)
        page.get_by_text("This key is not valid").wait_for()


def test_shown_model_answers_and_without_models_the_page_says_what_to_do(open_page, tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    with served(tiny_app(None, tmp_path, models_dir=folder)) as url:
        page = open_page(url)
        assert "woolly pull smollm2" in page.locator(".start .about").inner_text()
        ask(page, "Hi")
        assert "no model is installed; run woolly pull smollm2," in page.locator(".problem").inner_text()
        for name in ("one", "two"):
            write_tiny(TINY["llama"], folder / f"{name}.gguf")
        reload(page)
        page.locator("#model[data-state=unloaded]", has_text="one").wait_for()
        ask(page, "Hi")
        assert_shows(page.locator(".problem"), [])
        page.locator("#model[data-state=ready]", has_text="one").wait_for()


@pytest.mark.rare
def test_unsupported_file_is_grey_and_the_panel_follows_the_model(open_page, tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("one", "two"):
        write_tiny(TINY["llama"], folder / f"{name}.gguf")
    write_tiny(replace(TINY["llama"], architecture="nosuch"), folder / "alien.gguf")
    with served(tiny_app(None, tmp_path, models_dir=folder, models_max=2)) as url:
        page = open_page(url)
        page.locator("#performance").click()
        for name in ("one", "two"):
            page.locator("#model").click()
            page.get_by_label(f"Load {name}").click()
            page.locator("#models li[data-state=ready]", has_text=name).wait_for()
            page.locator("#models .choose", has_text=name).click()
            page.locator("#performance-figures dd").first.filter(has_text=name).wait_for()
        page.locator("#model").click()
        row = page.locator("#models [data-state=unsupported]")
        assert "nosuch" in row.inner_text() and row.locator("button").count() == 1
        row.locator("button").dispatch_event("click")
        assert page.locator("#model-name").inner_text() == "two"


@pytest.mark.rare
def test_page_without_scripts_says_what_is_needed(browser, server):
    context = browser.new_context(java_script_enabled=False, **DESKTOP)
    page = context.new_page()
    page.goto(server.url)
    said = page.locator("#opening noscript p")
    assert said.is_visible() and said.inner_text().startswith("This page needs JavaScript")
    assert not page.locator("#message").is_visible() and not page.get_by_text("Opening Woolly").is_visible()
    said.locator("a").click()
    assert page.get_by_text("POST /v1/chat/completions").first.is_visible()
    context.close()


@pytest.mark.rare
def test_page_shows_a_loading_state_and_nothing_incomplete(browser, server):
    context = browser.new_context(**DESKTOP)
    page = context.new_page()
    held = []
    page.route("**/js/app/main.js", lambda route: held.append(route))
    page.goto(server.url, wait_until="commit")
    page.get_by_text("Opening Woolly").wait_for()
    # Nothing is painted before the styles have come.
    sheets = "document.querySelectorAll('link[rel=stylesheet]').length"
    while not page.evaluate(f"document.styleSheets.length === {sheets}"):  # a page's own wait would need eval
        page.wait_for_timeout(20)
    assert not page.locator("#message").is_visible()
    assert page.locator("#opening .late").evaluate("node => getComputedStyle(node).opacity") == "0"
    while not held:
        page.wait_for_timeout(20)
    held[0].continue_()
    page.locator("#message").wait_for()
    assert page.locator("#opening").count() == 0
    context.close()


@pytest.mark.rare
def test_panel_does_not_cover_the_conversation(open_page, server):
    page = open_page(server.url, viewport={"width": 1000, "height": 700})
    for button in ("#performance", "#settings"):
        page.locator(button).click()
        panel, box = page.locator("#panel").bounding_box(), page.locator("#composer").bounding_box()
        assert box["x"] + box["width"] <= panel["x"] and box["width"] > 400
        assert page.locator(button).is_visible() and not page.locator("#sidebar").is_visible()
    page.keyboard.press("Control+Shift+F")
    assert page.locator("#sidebar").is_visible() and not page.locator("#panel").is_visible()
    assert_focus(page, "search")


@pytest.mark.rare
def test_statistics_without_answers_are_not_zeros(open_page, tiny_model, tmp_path):
    with served(tiny_app(tiny_model, tmp_path)) as url:
        httpx.post(f"{url}/api/v1/models/tiny/load", json={}, timeout=60).raise_for_status()
        page = open_page(url)
        page.locator("#performance").click()
        page.get_by_role("region", name="KV cache").get_by_text("tokens").wait_for()
        for card, says in {
            "Speed": "no answers yet",
            "First token": "no answers yet",
            "Weight store": "not read yet",
            "Prefix cache": "no prompt yet",
        }.items():
            assert says in page.get_by_role("region", name=card).inner_text()
