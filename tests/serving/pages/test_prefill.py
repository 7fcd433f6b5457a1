"""The server reads a message while it is typed."""

import json

import pytest

from tests.serving.pages.conftest import answers, ask, served, settled, until
from woolly.serving import Settings, create_app

pytestmark = pytest.mark.rare

PATH = "/v1/chat/completions/read_ahead"
LONG = "Tell me all that you know about the wool of sheep, of goats and of rabbits, and what is made of each of them, "


def read(page):
    """Responses of the server to typed messages."""
    finished = [one for one in page.watch.finished if one.url.endswith(PATH)]
    return [one.response().json() for one in finished]


def typed(page, text):
    page.locator("#message").press_sequentially(text)


def test_typed_text_is_prefilled_before_it_is_sent(page):
    page.locator("#message").fill(LONG * 3)
    until(page, lambda: read(page))
    assert read(page)[0]["state"] == "read" and read(page)[0]["read_tokens"] >= 64
    typed(page, "in short.")
    page.wait_for_timeout(1500)  # a word more is not worth a request
    assert len(page.watch.asked(PATH)) == 1
    typed(page, " And tell me how it is spun.")
    until(page, lambda: len(read(page)) == 2)
    second = read(page)[1]
    assert second["cached_tokens"] == read(page)[0]["read_tokens"]
    page.keyboard.press("Enter")
    settled(page)
    (sent,) = page.watch.asked("/v1/chat/completions")
    last = [json.loads(line[6:]) for line in sent.response().text().splitlines() if line.startswith("data: {")][-1]
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] >= second["cached_tokens"] + second["read_tokens"]
    assert answers(page).count() == 1


def test_conversation_before_the_message_is_included(page):
    ask(page, "Hi")
    page.locator("#message").fill("And what")
    until(page, lambda: page.watch.asked(PATH))
    roles = [message["role"] for message in page.watch.asked(PATH)[0].post_data_json["messages"]]
    assert roles == ["user", "assistant", "user"]


def test_sent_message_ends_its_prefill(page):
    page.route(f"**{PATH}", lambda route: None)  # never answered
    page.locator("#message").fill(LONG)
    until(page, lambda: page.watch.asked(PATH))
    page.keyboard.press("Enter")
    until(page, lambda: any(one.url.endswith(PATH) for one in page.watch.failed))
    settled(page)
    assert answers(page).count() == 1


@pytest.fixture
def closed(tiny_model, tmp_path):
    settings = Settings(
        models_dir=tiny_model.parent, sessions_file=tmp_path / "s.db", threads=1, n_predict=2, read_ahead=False
    )
    with served(create_app(settings)) as url:
        yield url


def test_server_without_prefill_is_sent_nothing(open_page, closed):
    page = open_page(closed)
    ask(page, "Hi")
    page.locator("#model[data-state=ready]").wait_for()
    page.locator("#message").fill(LONG)
    page.wait_for_timeout(1500)
    assert not page.watch.asked(PATH)
