"""The page's list of models: search, what can be fetched, and two models side by side."""

import json

import pytest

from tests.cases.tiny import TINY, write_tiny
from tests.serving.pages.conftest import (
    answer_with,
    answers,
    ask,
    assert_focus,
    event,
    kept,
    reload,
    served,
    settled,
    until,
)
from woolly.cli.terminal.answer import EMPTY
from woolly.serving import Settings, create_app

ROW = {
    "kind": "chat", "size_bytes": 2_500_000_000, "estimated": False, "parameters": 4_000_000, "active": 4_000_000,
    "quantization": "Q4_K_M", "architecture": "qwen3", "licence": "Apache-2.0", "fits": "yes", "here": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A server with two models."""
    folder = tmp_path_factory.mktemp("two")
    for name in ("one", "two"):
        write_tiny(TINY["llama"], folder / f"{name}.gguf")
    settings = Settings(models_dir=folder, sessions_file=folder / "s.db", threads=1, ctx_size=512, n_predict=4)
    with served(create_app(settings)) as url:
        yield url


def find(page, words):
    page.locator("#model").click()
    page.locator("#model-search").fill(words)
    page.locator("#catalogue li").first.wait_for()


@pytest.mark.rare
def test_search_finds_local_and_catalogue_models(open_page, two):
    page = open_page(two)
    find(page, "smollm2 360")
    assert page.locator("#model-list").inner_text() == "No installed model matches."
    row = page.locator('#catalogue li[data-name="smollm2:360m"]')
    assert " M parameters" in row.inner_text() and row.locator("code").inner_text() == "woolly pull smollm2:360m"
    assert page.get_by_role("button", name="Download smollm2:360m").count() == 0  # the server fetches nothing
    page.locator("#model-search").fill("tw")
    assert page.locator("#model-list .name").all_inner_texts() == ["two"]


@pytest.mark.rare
def test_opened_list_has_the_input_focus(open_page, two):
    page = open_page(two)
    page.locator("#model").click()
    page.keyboard.type("tw")
    assert page.locator("#model-list .name").all_inner_texts() == ["two"]
    page.keyboard.press("Escape")
    assert page.locator("#models").is_hidden()
    assert_focus(page, "model")
    page.keyboard.press("Enter")
    page.keyboard.type("on")  # in place of the words before
    assert page.locator("#model-list .name").all_inner_texts() == ["one"]


def test_model_is_downloaded_with_progress_and_errors_are_shown(open_page, two):
    page = open_page(two)
    rows = [{**ROW, "name": "qwen3:4b"}, {**ROW, "name": "qwen3:90b", "fits": "too large"}]
    page.route("**/api/v1/catalogue", lambda route: route.fulfill(json={"allowed": True, "models": rows}))
    steps = [{"status": "pulling", "total": 100, "completed": 40}, {"status": "success"}]
    page.route("**/api/pull", lambda route: route.fulfill(body="".join(json.dumps(step) + "\n" for step in steps)))
    find(page, "qwen3")
    assert page.get_by_role("button", name="Download qwen3:90b").count() == 0
    page.get_by_role("button", name="Download qwen3:4b").click()
    until(page, lambda: page.locator(".toast").all_inner_texts() == ["qwen3:4b is installed."])
    assert page.locator('#catalogue li[data-name="qwen3:4b"]').count() == 0
    assert page.watch.asked("/api/pull")[0].post_data_json == {"model": "qwen3:4b"}
    page.unroute("**/api/pull")
    rows[0]["here"] = False
    page.reload()
    find(page, "qwen3")
    page.get_by_role("button", name="Download qwen3:4b").click()
    until(page, lambda: "start the server with --allow-pull" in "".join(page.locator(".toast").all_inner_texts()))


@pytest.mark.rare
def test_two_models_answer_side_by_side_with_one_seed(open_page, two):
    page = open_page(two)
    page.locator("#model").click()
    page.locator('[data-action="beside two"]').click()
    page.keyboard.press("Escape")
    assert page.locator("#model-beside").inner_text() == "beside two"
    page.locator("#message").fill("Hi")
    page.keyboard.press("Enter")
    page.locator(".agreement").wait_for()
    settled(page)
    first, second = (one.post_data_json for one in page.watch.asked("/v1/chat/completions"))
    assert [first["model"], second["model"]] == ["one", "two"] and first["seed"] == second["seed"]
    assert first["messages"] == second["messages"]
    # The files are the same, and so are the answers: nothing but the seed chooses.
    assert page.locator(".agreement").inner_text() == "Both answers are identical."
    assert page.locator("#model-name").inner_text() == "one" and page.locator(".dropped").count() == 0
    page.get_by_role("button", name="Continue with this answer").click()
    assert page.locator(".pair .message.kept .by strong").inner_text() == "two"
    reload(page)
    page.locator(".pair").wait_for()
    assert answers(page).count() == 2
    page.locator("#model").click()
    page.locator('[data-action="beside two"]').click()
    page.keyboard.press("Escape")
    ask(page, "And?")
    assert len(page.watch.asked("/v1/chat/completions")) == 3 and page.locator(".pair").count() == 1


@pytest.mark.rare
def test_conversations_are_pinned_and_put_into_folders(open_page, two):
    page = open_page(two)
    for text in ("Alpha", "Beta", "Gamma"):
        page.locator("#new-chat").click()
        ask(page, text)
    row = page.locator(".conversation")
    row.filter(has_text="Alpha").hover()
    page.get_by_role("button", name="Pin Alpha").click()
    row.filter(has_text="Beta").hover()
    page.get_by_role("button", name="Folder of Beta").click()
    page.get_by_label("Folder", exact=True).fill("Work")
    page.keyboard.press("Enter")
    shown = ["Pinned", "Alpha", "Work1", "Beta", "Today", "Gamma"]
    texts = "[...document.querySelectorAll('#conversations > li')].map(one => one.textContent)"
    until(page, lambda: page.evaluate(texts) == shown)
    reload(page)
    until(page, lambda: page.evaluate(texts) == shown)
    page.locator(".folder").click()
    until(page, lambda: page.evaluate(texts) == [one for one in shown if one != "Beta"])
    assert '"folder":"Work"' in kept(page)


@pytest.mark.rare
def test_empty_answer_of_a_base_model_says_why(open_page, two):
    page = open_page(two)
    reported = [{"delta": {"content": " "}}, {"delta": {}, "finish_reason": "stop"}]
    stream = "".join(event({"model": "one", "choices": [{"index": 0, **one}]}) for one in reported) + event("[DONE]")
    page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=stream))
    ask(page, "Hi")
    # The words of the terminal.
    assert page.locator(".figures .cut").inner_text().startswith(EMPTY)
    assert page.get_by_role("button", name="Continue", exact=True).count() == 0
    until(page, lambda: page.locator("#announcer").text_content().startswith(EMPTY))
    page.unroute("**/v1/chat/completions")
    answer_with(page, "Well.")
    page.get_by_label("Answer again").click()
    settled(page)
    assert page.locator(".figures .cut").count() == 0


@pytest.mark.rare
def test_api_reference_tries_a_route(open_page, two):
    page = open_page(two)
    page.goto(f"{two}/docs")
    page.locator("#find").fill("post /tokenize")
    shown = page.locator("details:visible")
    assert shown.locator("summary code").all_inner_texts() == ["/tokenize"]
    shown.locator("summary").click()
    page.get_by_label("Body").fill('{"content": "a b", "add_special": false}')
    page.get_by_role("button", name="Send").click()
    reply = page.get_by_label("Reply")
    until(page, lambda: reply.inner_text().startswith("200") and '"tokens": [' in reply.inner_text())
