"""LM Studio's API: OpenAI's answers with LM Studio's statistics, and its list of models."""

import numpy as np
import pytest

from tests.cases.texts import write_readers
from tests.cases.tiny import TINY, byte_vocabulary, write_tiny
from woolly import __version__
from woolly.tokens import Tokenizer

HI = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 4}


def test_chat_has_openais_answer_and_statistics(client):
    reply = client.post("/api/v0/chat/completions", json={**HI, "ignore_eos": True}).json()
    other = client.post("/v1/chat/completions", json={**HI, "ignore_eos": True}).json()
    assert reply["choices"] == other["choices"] and reply["usage"]["completion_tokens"] == 4
    assert "stats" not in other
    stats = reply["stats"]
    assert stats["stop_reason"] == "maxPredictedTokensReached" and stats["tokens_per_second"] > 0
    assert stats["time_to_first_token"] > 0 and stats["generation_time"] > 0
    info = client.get("/api/v0/models").json()["data"][0]
    assert reply["model_info"] == {
        "arch": info["arch"],
        "quant": info["quantization"],
        "format": "gguf",
        "context_length": info["loaded_context_length"],
    }
    assert reply["runtime"] == {"name": "woolly", "version": __version__, "supported_formats": ["gguf"]}


def test_stream_is_openais(client):
    text = client.post("/api/v0/chat/completions", json={**HI, "stream": True}).text
    assert '"object":"chat.completion.chunk"' in text and text.endswith("data: [DONE]\n\n")


def test_text_completion_says_why_it_stopped(client):
    body = {"prompt": "the", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    reply = client.post("/api/v0/completions", json=body).json()
    assert reply["object"] == "text_completion" and reply["stats"]["stop_reason"] == "maxPredictedTokensReached"
    text = reply["choices"][0]["text"]
    stopped = client.post("/api/v0/completions", json={**body, "stop": text.strip()[:1]}).json()
    assert stopped["stats"]["stop_reason"] == "stopStringFound"
    end = Tokenizer.from_metadata(byte_vocabulary()).eos_id
    biased = {"prompt": "the", "max_tokens": 4, "logit_bias": {str(end): 100}}
    assert client.post("/api/v0/completions", json=biased).json()["stats"]["stop_reason"] == "eosFound"


def test_models_have_a_type_and_a_state(app_with, tmp_path):
    write_tiny(TINY["granite"], tmp_path / "writer-Q4_K_M.gguf")
    (write_readers(tmp_path, "embedder") / "embedder.gguf").rename(tmp_path / "reader.gguf")
    with app_with(models_dir=tmp_path) as client:
        rows = {row["id"]: row for row in client.get("/api/v0/models").json()["data"]}
        assert [rows[name]["type"] for name in ("writer-Q4_K_M", "reader")] == ["llm", "embeddings"]
        assert {row["state"] for row in rows.values()} == {"not-loaded"}
        assert rows["writer-Q4_K_M"]["quantization"] == "Q4_K_M" and "loaded_context_length" not in rows["reader"]
        body = {"model": "reader", "input": "sheep"}
        found, other = (client.post(f"{api}/embeddings", json=body).json() for api in ("/api/v0", "/v1"))
        np.testing.assert_array_equal(found["data"][0]["embedding"], other["data"][0]["embedding"])
        row = client.get("/api/v0/models/reader").json()
        assert row["state"] == "loaded" and row["loaded_context_length"] > 0
        assert row["object"] == "model" and row["compatibility_type"] == "gguf"


@pytest.mark.parametrize("path", ["/api/v0/models/nobody", "/api/v0/nothing"])
def test_errors_are_openais(client, path):
    reply = client.get(path)
    assert reply.status_code == 404 and reply.json()["error"]["message"], reply.text
