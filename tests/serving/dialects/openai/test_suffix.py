"""`suffix` fills in as /infill does, if the model has tokens for it."""

import pytest

from tests.cases import tiny
from tests.cases.tiny import TINY, byte_vocabulary, write_tiny

NAMES = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
BODY = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}


@pytest.fixture
def coder(app_with, tmp_path, monkeypatch):
    metadata = byte_vocabulary()
    first = metadata["tokenizer.ggml.tokens"].index("<|im_end|>") + 1
    metadata["tokenizer.ggml.tokens"][first : first + len(NAMES)] = NAMES
    monkeypatch.setattr(tiny, "byte_vocabulary", lambda: metadata)
    (tmp_path / "models").mkdir()
    write_tiny(TINY["llama"], tmp_path / "models" / "coder.gguf")
    with app_with(models_dir=tmp_path / "models") as client:
        yield client


def test_suffix_equals_infill(coder):
    filled = coder.post("/infill", json={"input_prefix": "def f(", "input_suffix": "return x", **BODY}).json()
    made = coder.post("/v1/completions", json={"prompt": "def f(", "suffix": "return x", **BODY}).json()
    assert made["choices"][0]["text"] == filled["content"]
    assert made["usage"]["prompt_tokens"] == filled["tokens_evaluated"]
    several = coder.post("/v1/completions", json={"prompt": ["a", "def f("], "suffix": "return x", **BODY}).json()
    assert several["choices"][1]["text"] == filled["content"]


@pytest.mark.parametrize("fields", [{"prompt": [5, 6]}, {"prompt": "a", "echo": True}])
def test_unsupported_suffix_is_rejected(coder, fields):
    reply = coder.post("/v1/completions", json={"suffix": "b", **BODY, **fields})
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "suffix"


def test_model_without_fim_tokens_gives_a_one_line_error(client):
    reply = client.post("/v1/completions", json={"prompt": "a", "suffix": "b", **BODY})
    assert (
        reply.status_code == 400
        and "this model has no fill-in-the-middle (FIM) tokens" in reply.json()["error"]["message"]
    )
