"""A thought that is under way can be ended: by a route, and by a button of the page."""

import json
import time
from dataclasses import replace

import httpx
import pytest

from tests.clients.conftest import TEMPLATE, serve
from tests.serving.pages.conftest import settled
from woolly.runtime.cpu.program import CpuProgram

pytestmark = pytest.mark.rare

OPEN = TEMPLATE + "{% if add_generation_prompt %}<think>{% endif %}"
BODY = {"messages": [{"role": "user", "content": "hi"}], "stream": True}


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    """A server whose model thinks for ever, and writes for ever after that.

    A step takes at least 10 ms: 50,000 tokens at the speed of a tiny model were over before a browser on a busy machine
    had shown the button.
    """
    plain = CpuProgram.compute
    with serve(tmp_path_factory.mktemp("thinker"), OPEN) as running, pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuProgram, "compute", lambda *given: (time.sleep(0.01), plain(*given))[1])
        first = {**BODY, "stream": False, "max_tokens": 1}  # loads the model, which the page waits for
        assert httpx.post(f"{running.url}/v1/chat/completions", json=first).status_code == 200
        generator = running.app.state.generator
        generator._defaults = replace(generator._defaults, logit_bias={"x": 100.0}, max_tokens=50000)
        yield running


def end(thinker, **body):
    return httpx.post(f"{thinker.url}/v1/chat/completions/control", json=body)


def test_reasoning_ends_when_the_reader_asks(thinker):
    thoughts = texts = ""
    with httpx.stream("POST", f"{thinker.url}/v1/chat/completions", json=BODY, timeout=60) as stream:
        for line in stream.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            delta = chunk["choices"][0]["delta"]
            if not thoughts and delta.get("reasoning_content"):
                assert end(thinker, id=chunk["id"]).json() == {"id": chunk["id"], "success": True}
            thoughts += delta.get("reasoning_content") or ""
            texts += delta.get("content") or ""
            if len(texts) > 20:
                assert end(thinker, id=chunk["id"], action="reasoning_end").json()["success"] is False  # it is over
                break
    assert set(thoughts) == {"x"} and set(texts) == {"x"}
    gone = end(thinker, id="chatcmpl-none")
    assert gone.status_code == 404 and "no running answer" in gone.json()["error"]["message"]
    assert end(thinker, id="a", action="stop").status_code == 400


def test_page_offers_to_answer_now(thinker, open_page):
    page = open_page(thinker.url)
    page.locator("#model[data-state=ready]").wait_for()
    page.locator("#message").fill("hi")
    page.keyboard.press("Enter")
    button = page.get_by_role("button", name="Answer now")
    button.click()
    page.locator(".message.assistant .markdown", has_text="xxx").wait_for()
    assert button.count() == 0
    page.locator("#send").click()
    settled(page)
    assert set(page.locator(".reasoning .plain").text_content()) == {"x"}
