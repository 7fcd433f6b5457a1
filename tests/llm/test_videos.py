"""Videos in conversations: SmolVLM and Qwen, over the library, the server and the command line."""

import base64
import json
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from tests.cases.pdfs import write_pdf
from tests.cases.tiny import TINY, write_tiny
from tests.cases.towers import TOWERS, write_tower
from tests.cases.videos import write_video
from tests.cli.terminal import woolly
from woolly import LLM
from woolly.cli.chat.chat import Chat
from woolly.cli.chat.conversation import Conversation
from woolly.multimodal import video
from woolly.sampling import SamplingParams
from woolly.serving import Settings, create_app

pytest.importorskip("av")
pytest.importorskip("PIL.Image")

M_ROPE = {"rope.dimension_sections": [2, 3, 3, 0]}
QWEN = replace(TINY["qwen3"], name="qwen3vl-text", architecture="qwen3vl", head_dim=16, extra=M_ROPE, context=2048)
GREEDY = {"temperature": 0, "max_tokens": 4, "ignore_eos": True}
# Five seconds: SmolVLM sees five frames of 16 rows, Qwen five pairs of 2 x 4 rows.
ROWS = {"smol": 5 * 16, "qwen": 5 * 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    write_tiny(replace(TINY["llama"], context=2048), folder / "smol-Q8_0.gguf")
    write_tower(TOWERS["idefics3"], folder / "mmproj-smol-F16.gguf")
    write_tiny(QWEN, folder / "qwen-Q8_0.gguf")
    write_tower(TOWERS["qwen3vl"], folder / "mmproj-qwen-F16.gguf")
    (folder / "clip.mp4").write_bytes(write_video(size=(32, 16)))
    return folder


def opened(folder, name):
    return LLM(folder / f"{name}-Q8_0.gguf", backend="cpu", threads=1, ctx=2048)


def test_video_over_http_matches_the_library_and_run(folder, name="qwen"):
    url = "data:video/mp4;base64," + base64.b64encode((folder / "clip.mp4").read_bytes()).decode()
    parts = [{"type": "video_url", "video_url": {"url": url}}, {"type": "text", "text": "hi"}]
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    model = str(folder / f"{name}-Q8_0.gguf")
    settings = Settings(models_dir=folder, model=model, backend="cpu", threads=1, ctx_size=2048)
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        reply = client.post("/v1/chat/completions", json=body)
        assert reply.status_code == 200, reply.text
        given = client.get(f"/v1/models/{name}-Q8_0").json()["architecture"]["input_modalities"]
        assert given == ["text", "image", "video"]
        parts[0]["video_url"]["url"] = "https://example.com/a.mp4"
        refused = client.post("/v1/chat/completions", json=body)
        assert refused.status_code == 400 and "does not fetch remote videos" in refused.json()["error"]["message"]
    with opened(folder, name) as llm:
        asked = llm.chat("hi", images=[folder / "clip.mp4"], **GREEDY)
        plain = llm.chat("hi", **GREEDY)
    assert asked.n_prompt_tokens > plain.n_prompt_tokens + ROWS[name]
    assert reply.json()["choices"][0]["message"]["content"] == asked.text
    assert reply.json()["usage"]["prompt_tokens"] == asked.n_prompt_tokens
    options = ["-n", "4", "-t", "1", "--backend", "cpu", "--temp", "0", "--ignore-eos", "--json", "-c", "2048"]
    ran = json.loads(woolly("run", model, "hi", "--image", str(folder / "clip.mp4"), *options))
    assert ran["prompt_tokens"] == asked.n_prompt_tokens


def test_second_turn_reads_and_encodes_nothing_again(folder, monkeypatch):
    with opened(folder, "qwen") as llm:
        first = llm.chat("hi", images=[folder / "clip.mp4"], **GREEDY, logprobs=1)
        monkeypatch.setattr(video, "run_decoder", lambda *_, **__: pytest.fail("the file was read again"))
        tower = llm.driver.engine.encoder_scheduler.tower
        n_runs = tower.n_runs
        again = [{"type": "video", "video": str(folder / "clip.mp4")}, {"type": "text", "text": "hi"}]
        second = llm.chat([{"role": "user", "content": again}], **GREEDY, logprobs=1)
        assert second.logprobs == first.logprobs and tower.n_runs == n_runs == 5


@pytest.mark.parametrize("name", ROWS)
def test_chat_takes_videos_by_the_image_command(folder, name, capsys):
    n_frames = {"smol": 5, "qwen": 10}[name]
    with opened(folder, name) as llm:
        chat = Chat(llm, Conversation(SamplingParams(max_tokens=2, seed=1)), None)
        chat.take(f"/image {folder / 'clip.mp4'}")
        reported = (
            f"clip.mp4 (5 s, {n_frames} frames, {ROWS[name]} tokens and their times) goes before your next message"
        )
        assert reported in "".join(capsys.readouterr())
        assert chat.images == [str(folder / "clip.mp4")]
        chat.take("hi")
        assert not chat.images and "error" not in capsys.readouterr().err


def test_qwen_2_video_is_one_range_in_the_prompt(folder, capsys, tmp_path):
    old = replace(TINY["qwen2"], name="old", architecture="qwen2vl", extra=M_ROPE, context=2048)
    write_tiny(old, tmp_path / "old-Q8_0.gguf")
    write_tower(TOWERS["qwen2vl"], tmp_path / "mmproj-old-F16.gguf")
    with opened(tmp_path, "old") as llm:
        chat = Chat(llm, Conversation(SamplingParams(max_tokens=2, seed=1)), None)
        chat.take(f"/image {folder / 'clip.mp4'}")
        said = "clip.mp4 (5 s, 10 frames, 640 tokens) goes before your next message"
        assert said in "".join(capsys.readouterr())
        chat.take("hi")
        assert not chat.images and "error" not in capsys.readouterr().err
        counts = [llm.chat("hi", images=one, **GREEDY).n_prompt_tokens for one in ([], [folder / "clip.mp4"])]
    assert counts[1] - counts[0] > 640


def test_chat_rejects_videos_and_takes_pdf_files_like_run(folder, capsys, tmp_path):
    write_tiny(replace(TINY["qwen2"], name="old", context=2048), tmp_path / "old-Q8_0.gguf")
    write_tower(TOWERS["internvl"], tmp_path / "mmproj-old-F16.gguf")
    with opened(tmp_path, "old") as llm:
        chat = Chat(llm, Conversation(SamplingParams(max_tokens=2, seed=1)), None)
        chat.take(f"/image {folder / 'clip.mp4'}")
        assert "do not support videos (SmolVLM and Qwen 2 to 3.6 VL do)" in capsys.readouterr().err
        assert not chat.images
        pytest.importorskip("pypdfium2")
        (tmp_path / "a.pdf").write_bytes(write_pdf(["Wool"], "0 0 60 40"))
        chat.take(f"/image {tmp_path / 'a.pdf'}")
        assert "a.pdf (1 page, " in "".join(capsys.readouterr()) and chat.images == [str(tmp_path / "a.pdf")]
