"""Audio on the page: attached, recorded, played, sent, kept, and rejected by models without audio support."""

import base64
import io
import wave

import pytest

from tests.cases.audio_towers import AUDIO_TOWERS, samples, write_audio_tower
from tests.cases.tiny import TINY, write_tiny
from tests.serving.pages.conftest import answers, ask, reload, served, settled, until
from tests.serving.pages.test_images import choose, sent
from woolly.serving import Settings, create_app

pytestmark = pytest.mark.rare

# Counts what the recorder has: a busy machine gives it nothing for a while.
COUNT = """() => {
  const start = MediaRecorder.prototype.start;
  MediaRecorder.prototype.start = function () {
    window.recorded = 0;
    this.addEventListener("dataavailable", (event) => { window.recorded += event.data.size; });
    start.call(this, 100);
  };
}"""


def wav_file(name="talk.wav", rate=8000):
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, rate, 0, "NONE", ""))
        out.writeframes((samples(rate) * 20_000).astype("<i2").tobytes())
    return {"name": name, "mimeType": "audio/wav", "buffer": file.getvalue()}


@pytest.fixture(scope="module")
def audio_server(tmp_path_factory):
    """Serve an audio model and a text model."""
    folder = tmp_path_factory.mktemp("audio")
    model = write_tiny(TINY["qwen2"], folder / "audio-Q8_0.gguf")
    write_audio_tower(AUDIO_TOWERS["qwen2a"], folder / "mmproj-audio-F16.gguf")
    write_tiny(TINY["llama"], folder / "text-Q8_0.gguf")
    settings = Settings(
        models_dir=folder, model=str(model), sessions_file=folder / "s.db", threads=1, ctx_size=512, n_predict=4
    )
    with served(create_app(settings)) as url:
        yield url


def opened(open_page, url):
    """Open the page with the audio model."""
    page = open_page(url)
    if page.locator("#model-name").inner_text() != "audio-Q8_0":
        choose(page, "audio-Q8_0")
    return page


def sent_audio(part):
    """Return the rate and the number of samples of a sent audio part."""
    assert part["type"] == "input_audio" and part["input_audio"]["format"] == "wav"
    with wave.open(io.BytesIO(base64.b64decode(part["input_audio"]["data"]))) as file:
        return file.getframerate(), file.getnframes()


def test_audio_is_played_sent_and_stored(open_page, audio_server):
    page = opened(open_page, audio_server)
    page.locator("#attach-file").set_input_files(wav_file())
    player = page.locator("#files audio")
    player.wait_for()
    until(page, lambda: player.evaluate("player => player.duration") == 1)
    ask(page, "What is said?")
    assert page.locator(".problem").count() == 0 and answers(page).count() == 1
    part, text = sent(page)
    assert sent_audio(part) == (8000, 8000) and text["text"] == "What is said?"  # a WAV file is sent as it is
    assert page.locator("#files li").count() == 0
    reload(page)
    page.locator(".message.user audio").wait_for()
    ask(page, "And now?")
    assert page.locator(".problem").count() == 0
    assert page.watch.asked("/v1/chat/completions")[-1].post_data_json["messages"][0]["content"][0] == part


def test_microphone_records_and_invalid_files_are_rejected(open_page, audio_server):
    page = opened(open_page, audio_server)
    page.locator("#attach-file").set_input_files({"name": "a.mp3", "mimeType": "audio/mpeg", "buffer": b"\0" * 99})
    words = ["a.mp3 is not an audio file that this browser can play."]
    until(page, lambda: page.locator(".toast").all_inner_texts() == words)
    page.evaluate(COUNT)
    page.get_by_role("button", name="Record audio").click()
    stop = page.get_by_role("button", name="Stop recording")
    stop.wait_for()
    until(page, lambda: page.evaluate("window.recorded") > 4000)
    stop.click()
    player = page.locator("#files audio")
    player.wait_for()
    until(page, lambda: player.evaluate("player => player.duration") > 0)
    assert page.get_by_role("button", name="Record audio").is_visible()
    ask(page, "What is it?")
    rate, n = sent_audio(sent(page)[0])
    assert rate == 16000 and n > 800
    assert page.locator(".problem").count() == 0


def test_text_model_is_not_sent_audio(open_page, audio_server):
    page = opened(open_page, audio_server)
    page.locator("#attach-file").set_input_files(wav_file())
    page.locator("#files audio").wait_for()
    ask(page, "What is said?")
    page.locator("#attach-file").set_input_files(wav_file("other.wav"))
    page.locator("#files audio").wait_for()
    choose(page, "text-Q8_0")
    note = page.locator("#files-note")
    until(page, lambda: note.is_visible())
    assert note.inner_text() == "text-Q8_0 does not support audio: choose a model that does, or remove the audio file."
    assert page.locator("#record").is_hidden()
    page.get_by_role("button", name="Remove other.wav").click()
    ask(page, "and?")
    assert page.locator(".problem p").inner_text().startswith("text-Q8_0 does not support audio: choose a model")
    page.get_by_role("button", name="Continue without the audio").click()
    settled(page)
    assert page.locator(".problem").count() == 0
    first = page.watch.asked("/v1/chat/completions")[-1].post_data_json["messages"][0]["content"]
    assert first == "[Audio talk.wav]\n\nWhat is said?"
    page.locator("#attach-file").set_input_files(wav_file())
    words = ["text-Q8_0 does not support audio; text and PDF files can be attached."]
    until(page, lambda: page.locator(".toast").all_inner_texts() == words)
