"""PDF files on the page: dropped, sent, kept, and read as text by a model that sees nothing."""

import base64

import pytest

from tests.cases.pdfs import write_pdf
from tests.serving.pages.conftest import answers, ask, reload, until
from tests.serving.pages.test_images import choose, sent, vision_server

pytestmark = pytest.mark.rare

pytest.importorskip("pypdfium2")

__all__ = ["vision_server"]  # the fixture

DATA = base64.b64encode(write_pdf(["Wool"], "0 0 60 40")).decode()

DROP = """([data]) => {
  const bytes = Uint8Array.from(atob(data), (one) => one.charCodeAt(0));
  const files = new DataTransfer();
  files.items.add(new File([bytes], "wool.pdf", { type: "application/pdf" }));
  document.querySelector("main").dispatchEvent(new DragEvent("drop", { dataTransfer: files, bubbles: true }));
}"""


def test_dropped_file_is_sent_stored_and_read_by_any_model(open_page, vision_server):
    page = open_page(vision_server)
    for model in ("seer-Q8_0", "text-Q8_0"):
        choose(page, model)
        page.evaluate(DROP, [DATA])
        until(page, lambda: page.locator("#files li").count() == 1)
        assert "wool.pdf" in page.locator("#files li").inner_text() and page.locator("#files-note").is_hidden()
        ask(page, "What is it?")
        assert page.locator(".problem").count() == 0
        file, text = sent(page)
        assert file == {
            "type": "file",
            "file": {"filename": "wool.pdf", "file_data": f"data:application/pdf;base64,{DATA}"},
        }
        assert text["text"] == "What is it?"
    assert answers(page).count() == 2
    reload(page)
    until(page, lambda: page.locator(".message.user .files li").count() == 2)
    ask(page, "And now?")
    first = page.watch.asked("/v1/chat/completions")[-1].post_data_json["messages"][0]["content"]
    assert first[0] == file and page.locator(".problem").count() == 0  # the history has it


def test_broken_file_shows_the_server_error(open_page, vision_server):
    page = open_page(vision_server)
    page.evaluate(DROP, [DATA[:100]])
    until(page, lambda: page.locator("#files li").count() == 1)
    ask(page, "What is it?")
    assert "wool.pdf is a damaged PDF file" in page.locator(".problem").inner_text()
