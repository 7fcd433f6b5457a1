"""Images on the page: attached, pasted, sent, kept, and refused in words if the model sees none."""

from dataclasses import replace
from io import BytesIO

import pytest

from tests.cases.tiny import TINY, write_tiny
from tests.cases.towers import TOWERS, write_tower
from tests.cases.videos import write_video
from tests.serving.pages.conftest import answers, ask, reload, served, settled, until
from woolly.serving import Settings, create_app

Image = pytest.importorskip("PIL.Image")

VISION_MODEL = replace(
    TINY["qwen2"], name="vision", architecture="qwen2vl", extra={"rope.dimension_sections": [2, 3, 3, 0]}
)  # fmt: skip

PASTE = """([text]) => new Promise((done) => {
  const canvas = Object.assign(document.createElement("canvas"), { width: 30, height: 30 });
  canvas.getContext("2d").fillRect(5, 5, 9, 9);
  canvas.toBlob((blob) => {
    const data = new DataTransfer();
    data.items.add(new File([blob], "image.png", { type: "image/png" }));
    if (text) data.setData("text/plain", text);
    const event = new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true });
    done(document.getElementById("message").dispatchEvent(event));
  });
})"""

OVER = """() => {
  const data = new DataTransfer();
  data.items.add(new File(["a"], "a.png", { type: "image/png" }));
  document.querySelector("main").dispatchEvent(new DragEvent("dragover", { dataTransfer: data, cancelable: true }));
  return getComputedStyle(document.querySelector("#composer .box")).borderTopStyle;
}"""

DROP = """([size]) => {
  const data = new DataTransfer();
  for (const name of ["1.png", "2.png"]) data.items.add(new File([new Uint8Array(size)], name, { type: "image/png" }));
  const event = new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
  document.querySelector("main").dispatchEvent(event);
}"""


def image_file(name="red.png"):
    file = BytesIO()
    Image.new("RGB", (40, 30), "red").save(file, "PNG")
    return {"name": name, "mimeType": "image/png", "buffer": file.getvalue()}


@pytest.fixture(scope="module")
def vision_server(tmp_path_factory):
    """A server with a model that takes images and a text model, whose names differ by more than the word vision."""
    folder = tmp_path_factory.mktemp("vision")
    model = write_tiny(VISION_MODEL, folder / "seer-Q8_0.gguf")
    write_tower(TOWERS["qwen2vl"], folder / "mmproj-seer-F16.gguf")
    write_tiny(TINY["llama"], folder / "text-Q8_0.gguf")
    settings = Settings(
        models_dir=folder, model=str(model), sessions_file=folder / "s.db", threads=1, ctx_size=512, n_predict=4
    )
    with served(create_app(settings)) as url:
        yield url


def choose(page, name):
    page.locator("#model").click()
    page.locator(f'[data-action="choose {name}"]').click()
    until(page, lambda: page.locator("#model-name").inner_text() == name)
    page.locator("#model[data-state=ready]").wait_for()
    if page.locator("#models").is_visible():
        page.keyboard.press("Escape")


def sent(page):
    return page.watch.asked("/v1/chat/completions")[-1].post_data_json["messages"][-1]["content"]


def test_image_is_shown_sent_and_stored(open_page, vision_server):
    page = open_page(vision_server)
    files = page.locator("#files li")
    page.locator("#attach-file").set_input_files([image_file(), image_file("other.png")])
    until(page, lambda: files.count() == 2)
    assert page.locator("#files img").first.evaluate("image => image.naturalWidth") == 40
    page.get_by_role("button", name="Remove other.png").click()
    assert files.count() == 1
    ask(page, "What is it?")
    assert page.locator(".problem").count() == 0 and answers(page).count() == 1
    image, text = sent(page)
    assert image["image_url"]["url"].startswith("data:image/png;base64,") and text["text"] == "What is it?"
    assert files.count() == 0
    reload(page)
    page.locator(".message.user img").wait_for()
    ask(page, "And now?")
    assert page.locator(".problem").count() == 0
    first = page.watch.asked("/v1/chat/completions")[-1].post_data_json["messages"][0]["content"]
    assert first[0] == image  # the history has it


@pytest.mark.rare
def test_video_is_shown_sent_and_stored(open_page, vision_server):
    pytest.importorskip("av")
    page = open_page(vision_server)
    clip = {"name": "a.mp4", "mimeType": "video/mp4", "buffer": write_video(n=4, rate=2, size=(32, 16))}
    page.locator("#attach-file").set_input_files(clip)
    page.locator("#files video").wait_for()
    ask(page, "What moves?")
    assert page.locator(".problem").count() == 0 and answers(page).count() == 1
    video, text = sent(page)
    assert video["video_url"]["url"].startswith("data:video/mp4;base64,") and text["text"] == "What moves?"
    reload(page)
    page.locator(".message.user video").wait_for()


@pytest.mark.rare
def test_pasted_image_is_attached_unless_text_came_with_it(open_page, vision_server):
    page = open_page(vision_server)
    assert page.evaluate(PASTE, [""]) is False  # the page took it
    until(page, lambda: page.locator("#files li").count() == 1)
    assert page.evaluate(PASTE, ["a table"]) is True  # the browser pastes the text
    assert page.locator("#files li").count() == 1


@pytest.mark.rare
def test_too_large_or_invalid_image_is_rejected_with_a_message(open_page, vision_server):
    page = open_page(vision_server)
    toast = page.locator(".toast")
    assert page.evaluate(OVER) == "dashed"
    page.evaluate(DROP, [8_000_000])
    until(page, lambda: toast.all_inner_texts() == ["2.png has 8 MB; the limit for images is 6 MB."])
    # Made in the page: twice 6 MB would take seconds to bring there.
    page.evaluate(DROP, [6_000_000])
    words = "2.png does not fit: the limit for all images, audio, videos and PDF files of a message is 11 MB."
    until(page, lambda: toast.all_inner_texts() == [words])
    page.locator("#attach-file").set_input_files({"name": "a.heic", "mimeType": "image/heic", "buffer": b"\0"})
    kinds = "UTF-8 text, an image (PNG, JPEG, WebP, GIF or BMP), audio, a video or a PDF file."
    words = f"a.heic is not supported; attach {kinds}"
    until(page, lambda: toast.all_inner_texts() == [words])


def test_text_model_is_sent_no_image(open_page, vision_server):
    page = open_page(vision_server)
    page.locator("#attach-file").set_input_files(image_file())
    page.locator("#files li").wait_for()
    ask(page, "What is it?")
    page.locator("#attach-file").set_input_files(image_file())
    page.locator("#files li").wait_for()
    choose(page, "text-Q8_0")
    note = page.locator("#files-note")
    until(page, lambda: note.is_visible())
    assert note.inner_text() == "text-Q8_0 does not support images: choose a model that does, or remove the image."
    page.locator("#message").fill("and?")
    assert page.locator("#send").is_disabled()
    page.get_by_role("button", name="Remove red.png").click()
    assert note.is_hidden() and page.locator("#send").is_enabled()
    n_asked = len(page.watch.asked("/v1/chat/completions"))
    ask(page, "and?")
    assert page.locator(".problem p").inner_text().startswith("text-Q8_0 does not support images: choose a model")
    assert len(page.watch.asked("/v1/chat/completions")) == n_asked
    page.get_by_role("button", name="Continue without the images").click()
    settled(page)
    assert page.locator(".problem").count() == 0
    first = page.watch.asked("/v1/chat/completions")[-1].post_data_json["messages"][0]["content"]
    assert first == "[Image red.png]\n\nWhat is it?"
    page.locator("#attach-file").set_input_files(image_file())
    until(
        page,
        lambda: (
            page.locator(".toast").all_inner_texts()
            == ["text-Q8_0 does not support images; text and PDF files can be attached."]
        ),
    )
    page.locator("#attach-file").set_input_files({"name": "a.mp4", "mimeType": "video/mp4", "buffer": b"\0"})
    words = "text-Q8_0 does not support videos; text and PDF files can be attached."
    until(page, lambda: page.locator(".toast").all_inner_texts() == [words])
    assert page.locator("#files li").count() == 0
