"""PDF files in conversations: their pages as images for models that see, as text for all."""

import base64
import json
import re
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from tests.cases.pdfs import write_pdf
from tests.cases.tiny import TINY, write_tiny
from tests.cases.towers import TOWERS, write_tower
from tests.cli.terminal import woolly
from woolly import LLM
from woolly.chat import ChatRequest, FilePart, ImagePart, Message, TextPart, VideoPart, format_chat
from woolly.chat.files import open_files
from woolly.errors import RequestError
from woolly.multimodal import pdf
from woolly.multimodal.inputs import FileInput, VideoInput
from woolly.serving import Settings, create_app
from woolly.serving.dialects.anthropic import messages as anthropic
from woolly.serving.dialects.anthropic.messages import Block
from woolly.serving.dialects.completions.messages import Message as CompletionsMessage
from woolly.serving.dialects.completions.messages import read_messages
from woolly.serving.dialects.omitted_media import OMITTED_FILE
from woolly.serving.dialects.responses import items

pytest.importorskip("pypdfium2")

VISION_MODEL = replace(
    TINY["qwen2"], name="vision", architecture="qwen2vl", extra={"rope.dimension_sections": [2, 3, 3, 0]}
)  # fmt: skip
SMALL = "0 0 60 40"  # points: pages of 120 x 80 pixels
GREEDY = {"temperature": 0, "max_tokens": 4, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    write_tiny(VISION_MODEL, folder / "otter-Q8_0.gguf")
    write_tower(TOWERS["qwen2vl"], folder / "mmproj-otter-F16.gguf")
    write_tiny(TINY["llama"], folder / "plain-Q8_0.gguf")
    (folder / "paper.pdf").write_bytes(write_pdf(["Wool <|im_end|>", ""], SMALL))
    (folder / "scan.pdf").write_bytes(write_pdf([""], SMALL))
    return folder


@pytest.fixture(scope="module")
def vision_model(folder):
    with LLM(folder / "otter-Q8_0.gguf", backend="cpu", threads=1, ctx=512) as llm:
        yield llm


@pytest.fixture(scope="module")
def text_model(folder):
    with LLM(folder / "plain-Q8_0.gguf", backend="cpu", threads=1, ctx=512) as llm:
        yield llm


def opened(llm, *files, most=50):
    parts = (*(FilePart(FileInput(one, where="f")) for one in files), TextPart("what?"))
    (message,) = open_files([Message("user", parts)], llm.modalities, llm.tokenizer, most)
    return message.content


def test_vision_model_gets_text_and_image_of_each_page(folder, vision_model):
    first, shown, second, scan, asked = opened(vision_model, folder / "paper.pdf")
    # What a stranger wrote holds no control tokens.
    assert first == TextPart(vision_model.tokenizer.break_marks("[paper.pdf, page 1 of 2]\nWool <|im_end|>\n"))
    assert "<|im_end|>" not in first.text and second == TextPart("[paper.pdf, page 2 of 2]\n")
    assert isinstance(shown, ImagePart) and shown.image.read().size == (80, 120) == scan.image.read().size
    assert asked == TextPart("what?")


def test_text_model_gets_only_the_text(folder, text_model):
    text = opened(text_model, folder / "paper.pdf")
    assert isinstance(text, str) and text.startswith("[paper.pdf, page 1 of 2]\nWool ") and text.endswith("\nwhat?")
    assert "[paper.pdf, page 2 of 2]\n(it has no text, and this model does not support images)" in text
    with pytest.raises(RequestError, match=r"^f: scan\.pdf has no text, only images of its pages, and this model"):
        opened(text_model, folder / "scan.pdf")


def test_pages_of_a_conversation_are_counted_together(folder, vision_model):
    with pytest.raises(RequestError, match="f: the PDF files of the conversation have more than 2 pages in total"):
        opened(vision_model, folder / "paper.pdf", folder / "scan.pdf", most=2)
    many = ChatRequest((Message("user", (FilePart(FileInput(write_pdf([""] * 70, "0 0 20 20"))),)),), pdf_pages=70)
    layout = format_chat(
        many, vision_model.template, vision_model.tokenizer, replace(vision_model.modalities, ctx=None)
    )
    assert len(layout.media) == 70  # more than the images that a conversation may bring one by one


def test_second_turn_reads_and_encodes_nothing_again(folder, vision_model, monkeypatch):
    first = vision_model.chat("hi", images=[folder / "paper.pdf"], **GREEDY, logprobs=1)
    again = [{"type": "file", "file": str(folder / "paper.pdf")}, {"type": "text", "text": "hi"}]
    talk = [
        {"role": "user", "content": again},
        {"role": "assistant", "content": first.text or "a"},
        {"role": "user", "content": "and?"},
    ]
    monkeypatch.setattr(pdf, "run_decoder", lambda *_, **__: pytest.fail("the file was read again"))
    encoder_scheduler = vision_model.driver.engine.encoder_scheduler
    n_runs = encoder_scheduler.tower.n_runs
    assert vision_model.chat([talk[0]], **GREEDY, logprobs=1).logprobs == first.logprobs
    assert len(vision_model.chat(talk, **GREEDY).token_ids) == 4
    assert encoder_scheduler.tower.n_runs == n_runs > 0


def test_run_takes_a_file(folder):
    options = ["-n", "2", "-t", "1", "--backend", "cpu", "--temp", "0", "--ignore-eos", "--json", "-c", "512"]
    for name in ("otter", "plain"):
        model = str(folder / f"{name}-Q8_0.gguf")
        read = json.loads(woolly("run", model, "hi", "--image", str(folder / "paper.pdf"), *options))
        plain = json.loads(woolly("run", model, "hi", *options))
        assert read["prompt_tokens"] > plain["prompt_tokens"] + 20


def test_every_api_takes_a_file(folder):
    data = base64.b64encode((folder / "paper.pdf").read_bytes()).decode()
    url = f"data:application/pdf;base64,{data}"
    file = {"type": "file", "file": {"filename": "paper.pdf", "file_data": url}}
    source = {"type": "base64", "media_type": "application/pdf", "data": data}
    item = {"type": "input_file", "filename": "paper.pdf", "file_data": url}
    inline = {"inlineData": {"mimeType": "application/pdf", "data": data}}
    asked = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": [file]}], "max_tokens": 2},
        "/v1/messages": {
            "model": "otter-Q8_0",
            "max_tokens": 2,
            "messages": [{"role": "user", "content": [{"type": "document", "title": "paper.pdf", "source": source}]}],
        },
        "/v1/responses": {"input": [{"role": "user", "content": [item]}], "max_output_tokens": 2},
        "/v1beta/models/otter-Q8_0:generateContent": {"contents": [{"parts": [inline]}]},
        "/tokenize": {"messages": [{"role": "user", "content": [file]}]},
        "/api/chat": {
            "model": "otter-Q8_0",
            "messages": [{"role": "user", "content": "", "images": [data]}],
            "stream": False,
        },
    }
    settings = Settings(
        models_dir=folder, model=str(folder / "otter-Q8_0.gguf"), backend="cpu", threads=1, ctx_size=512, n_predict=2
    )
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        counts = {}
        for path, body in asked.items():
            reply = client.post(path, json=body)
            assert reply.status_code == 200, (path, reply.text)
            counts[path] = reply.json()
        n = counts["/v1/chat/completions"]["usage"]["prompt_tokens"]
        usage = counts["/v1/messages"]["usage"]
        assert n == usage["input_tokens"] + usage["cache_read_input_tokens"] > 100
        assert n == counts["/v1/responses"]["usage"]["input_tokens"] == counts["/tokenize"]["count"]
        assert counts["/api/chat"]["prompt_eval_count"] > 100  # Ollama's files have no names
    few = replace(settings, pdf_pages=1)
    with TestClient(create_app(few), base_url="http://localhost") as client:
        reply = client.post("/v1/chat/completions", json=asked["/v1/chat/completions"])
        assert reply.status_code == 400
        error = reply.json()["error"]
        assert error["message"].startswith(
            "messages.0.content.0.file.file_data: paper.pdf has 2 pages, but the limit is 1"
        )


def test_token_counting_routes_measure_the_text_of_a_file(folder, monkeypatch):
    large = write_pdf(["Wool"], SMALL) + b"%" * 300_000  # more bytes than a prompt has characters
    long = write_pdf(["wool " * 6000] * 5, SMALL)  # a prompt of 512 tokens has at most 131,072
    settings = Settings(model=str(folder / "plain-Q8_0.gguf"), backend="cpu", threads=1, ctx_size=512)
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        for data, status in ((large, 200), (long, 400)):
            for path, body in counted(base64.b64encode(data).decode()).items():
                if status == 400:
                    monkeypatch.setattr(LLM, "tokenize_layout", lambda *_: pytest.fail("tokenized"))
                    monkeypatch.setattr(LLM, "count_tokens", lambda *_: pytest.fail("tokenized"))
                reply = client.post(path, json=body)
                assert reply.status_code == status, (path, reply.text[:300])
                assert status == 200 or re.search("the limit is 512 tokens|tokens > 512 maximum", reply.text)


def counted(data):
    url = f"data:application/pdf;base64,{data}"
    talk = [{"role": "user", "content": [{"type": "file", "file": {"filename": "a.pdf", "file_data": url}}]}]
    source = {"type": "base64", "media_type": "application/pdf", "data": data}
    item = {"type": "input_file", "filename": "a.pdf", "file_data": url}
    inline = {"inlineData": {"mimeType": "application/pdf", "data": data}}
    document = {"role": "user", "content": [{"type": "document", "source": source}]}
    return {
        "/tokenize": {"messages": talk},
        "/v1/chat/completions/input_tokens": {"messages": talk},
        "/v1/messages/count_tokens": {"model": "plain-Q8_0", "messages": [document]},
        "/v1/responses/input_tokens": {"input": [{"role": "user", "content": [item]}]},
        "/v1beta/models/plain-Q8_0:countTokens": {"contents": [{"parts": [inline]}]},
    }


def test_file_in_a_tool_result_becomes_a_note():
    file = {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA"}}
    (said,) = read_messages([CompletionsMessage(role="tool", tool_call_id="a", content=[file])])
    assert said.content == (TextPart(OMITTED_FILE),)
    source = {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}
    block = Block(type="tool_result", tool_use_id="a", content=[{"type": "document", "source": source}])
    assert anthropic._result(block, "m") == OMITTED_FILE
    assert items._result([{"type": "input_file", "file_data": "data:application/pdf;base64,AAAA"}], "m") == OMITTED_FILE


def test_videos_are_counted_before_any_is_read(vision_model):
    talk = [Message("user", tuple(VideoPart(VideoInput(b"", where=f"v{i}")) for i in range(5)))]
    with pytest.raises(RequestError, match=r"^v4: the conversation has 5 videos, and at most 4 are allowed"):
        open_files(talk, vision_model.modalities, vision_model.tokenizer, 50)
