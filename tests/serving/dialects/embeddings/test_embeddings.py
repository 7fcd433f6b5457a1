"""Vectors over HTTP: the same ones as the library's, in each dialect's shape and with its errors."""

import asyncio
import base64
import threading
import time

import numpy as np
import pytest

from tests.cases.encoders import ENCODERS
from tests.cases.tiny import write_tiny
from woolly import LLM
from woolly.engine.pooling.runner import PoolingRunner
from woolly.serving.generation import pooling
from woolly.store import models_for

TEXTS = ["sheep", "a goat on the hill"]


@pytest.fixture(scope="module")
def wanted(readers):
    with LLM(readers / "embedder.gguf", threads=1) as llm:
        yield llm.embed(TEXTS), llm.embed(TEXTS, normalize=False), [llm.tokenize(text) for text in TEXTS]


def test_gemini_gives_one_embedding_or_several(client, wanted):
    vectors, _, _ = wanted
    bodies = [{"content": {"parts": [{"text": text}]}, "model": "models/embedder"} for text in TEXTS]
    several = client.post("/v1beta/models/embedder:batchEmbedContents", json={"requests": bodies}).json()["embeddings"]
    np.testing.assert_array_equal(np.array([one["values"] for one in several], np.float32), vectors)
    reply = client.post("/v1beta/models/embedder:embedContent", json={**bodies[1], "taskType": "RETRIEVAL_QUERY"})
    np.testing.assert_array_equal(np.array(reply.json()["embedding"]["values"], np.float32), vectors[1])
    assert "taskType" in reply.headers["x-woolly-ignored"]
    cut = client.post("/v1beta/models/embedder:embedContent", json={**bodies[0], "outputDimensionality": 4}).json()
    assert len(cut["embedding"]["values"]) == 4


def test_openai_takes_texts_and_ids_in_two_encodings(client, wanted):
    vectors, _, ids = wanted
    for given in (TEXTS, ids, [TEXTS[0], ids[1]]):
        reply = client.post("/v1/embeddings", json={"model": "embedder", "input": given}).json()
        assert [one["index"] for one in reply["data"]] == [0, 1] and reply["object"] == "list"
        np.testing.assert_array_equal(np.array([one["embedding"] for one in reply["data"]], np.float32), vectors)
        assert reply["usage"] == {"prompt_tokens": sum(map(len, ids)), "total_tokens": sum(map(len, ids))}
    for given in (TEXTS[0], ids[0]):
        body = {"model": "embedder", "input": given, "encoding_format": "base64"}
        (one,) = client.post("/v1/embeddings", json=body).json()["data"]
        np.testing.assert_array_equal(np.frombuffer(base64.b64decode(one["embedding"]), "<f4"), vectors[0])


def test_strings_and_ids_of_one_list_are_one_text(client, readers):
    with LLM(readers / "embedder.gguf", threads=1) as llm:
        first, second = llm.tokenize("a goat"), llm.tokenizer.encode(" on the hill", add_special=False)
        wanted = llm.embed([[*first, 5, *second], [5, *second]])
    parts = ["a goat", 5, " on the hill"]
    for given, rows in ((parts, wanted[:1]), ([parts, parts[1:]], wanted)):
        reply = client.post("/v1/embeddings", json={"model": "embedder", "input": given}).json()
        np.testing.assert_array_equal(np.array([one["embedding"] for one in reply["data"]], np.float32), rows)
        native = client.post("/embedding", json={"model": "embedder", "content": given}).json()
        np.testing.assert_allclose([one["embedding"][0] for one in native], rows, atol=1e-6)
    reply = client.post("/v1/embeddings", json={"model": "embedder", "input": ["a", 999_999]})
    assert reply.status_code == 400 and "999999" in reply.json()["error"]["message"]
    assert client.post("/v1/embeddings", json={"model": "embedder", "input": ["a", 5, ["b"]]}).status_code == 400
    assert client.post("/v1/embeddings", json={"model": "embedder", "input": [["a", "b"]]}).status_code == 400


def test_dimensions_truncate_and_normalize_again(client, wanted):
    body = {"model": "embedder", "input": "sheep", "dimensions": 16}
    (one,) = client.post("/v1/embeddings", json=body).json()["data"]
    short = wanted[0][0][:16]
    np.testing.assert_allclose(one["embedding"], short / np.linalg.norm(short), atol=1e-6)
    reply = client.post("/v1/embeddings", json={**body, "dimensions": 65})
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "dimensions"
    assert "1 to 64" in reply.json()["error"]["message"]


def test_ollama_formats(client, wanted):
    vectors, raw, ids = wanted
    reply = client.post("/api/embed", json={"model": "embedder:latest", "input": TEXTS}).json()
    np.testing.assert_array_equal(np.array(reply["embeddings"], np.float32), vectors)
    assert reply["prompt_eval_count"] == sum(map(len, ids)) and reply["total_duration"] >= reply["load_duration"] >= 0
    one = client.post("/api/embeddings", json={"model": "embedder", "prompt": TEXTS[1]}).json()
    np.testing.assert_array_equal(np.array(one["embedding"], np.float32), raw[1])
    assert client.post("/api/embed", json={"model": "embedder", "input": []}).json()["embeddings"] == []
    assert client.post("/api/embeddings", json={"model": "embedder", "prompt": ""}).json() == {"embedding": []}


@pytest.mark.parametrize(("kind", "order"), [(-1, None), (0, None), (1, 1), (None, 2), (3, 3)])
def test_llama_server_normalizes_on_request(client, wanted, kind, order):
    raw = wanted[1].astype(np.float64)
    lengths = {-1: np.ones(2), 0: np.abs(raw).max(axis=1) / 32760}.get(kind)
    if lengths is None:
        lengths = np.linalg.norm(raw, ord=order, axis=1)
    body = {"model": "embedder", "content": TEXTS, **({} if kind is None else {"embd_normalize": kind})}
    reply = client.post("/embedding", json=body).json()
    assert [one["index"] for one in reply] == [0, 1]
    rows = [row for one in reply for row in one["embedding"]]
    np.testing.assert_allclose(rows, raw / lengths[:, None], rtol=1e-5)


def test_embeddings_without_v1_follow_the_encoding_field(client):
    ours = client.post("/embeddings", json={"model": "embedder", "content": "sheep"}).json()
    theirs = client.post("/embeddings", json={"model": "embedder", "input": "sheep"}).json()
    assert theirs["data"][0]["embedding"] == ours[0]["embedding"][0]


def test_cohere_replies_by_type(client, wanted):
    body = {
        "model": "embedder",
        "texts": TEXTS,
        "input_type": "search_document",
        "embedding_types": ["float", "base64"],
    }
    reply = client.post("/v2/embed", json=body)
    np.testing.assert_array_equal(np.array(reply.json()["embeddings"]["float"], np.float32), wanted[0])
    assert reply.headers["x-woolly-ignored"].startswith("input_type")
    assert client.post("/v2/embed", json={**body, "embedding_types": ["int8"]}).status_code == 400


LONG = "b" * 600


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/embeddings", {"input": ["a", LONG]}, lambda reply: reply["error"]["message"]),
        ("/embedding", {"content": ["a", LONG]}, lambda reply: reply["error"]["message"]),
        ("/api/embed", {"input": ["a", LONG]}, lambda reply: reply["error"]),
        ("/v2/embed", {"texts": ["a", LONG]}, lambda reply: reply["message"]),
    ],
)
def test_too_long_text_is_rejected_with_both_numbers_or_truncated_with_a_warning(client, path, body, message):
    reply = client.post(path, json={"model": "embedder", **body})
    assert reply.status_code == 400
    assert "text 1 has 600 tokens" in message(reply.json()) and "512" in message(reply.json())
    cut = client.post(path, json={"model": "embedder", "truncate": "END" if path == "/v2/embed" else True, **body})
    assert cut.status_code == 200 and cut.headers["x-woolly-truncated"] == "1"
    if path in ("/v1/embeddings", "/api/embed"):
        assert cut.json()["truncated"] == [1]


def test_chat_model_is_rejected_with_the_name_of_a_local_embedding_model(client):
    reply = client.post("/v1/embeddings", json={"model": "tiny", "input": "a"})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, "wrong_model", "model")
    assert "tiny cannot embed texts" in error["message"] and "use embedder" in error["message"]
    assert client.post("/api/embed", json={"model": "tiny", "input": "a"}).json()["error"].endswith("use embedder")


def test_request_without_a_model_goes_to_an_embedding_model(client):
    assert client.post("/v1/embeddings", json={"input": "a"}).json()["model"] == "embedder"
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    assert client.post("/v1/completions", json={"prompt": "hi", "max_tokens": 1}).json()["model"] == "tiny"
    assert client.post("/v1/chat/completions", json={**chat, "model": "embedder"}).status_code == 400


def test_chat_and_embedding_model_stay_loaded_together(app_with, readers):
    with app_with(models_dir=readers) as client:
        check_beside(client)


def check_beside(client):
    for _ in range(2):
        client.post("/v1/completions", json={"model": "tiny", "prompt": "hi", "max_tokens": 1})
        client.post("/v1/embeddings", json={"model": "embedder", "input": "a"})
        client.post("/v1/rerank", json={"model": "ranker", "query": "a", "documents": ["b"]})
    loaded = {slot.info.name for slot in client.app.state.models.loaded_models}
    assert loaded == {"tiny", "embedder", "ranker"}
    client.post("/v1/rerank", json={"model": "judge", "query": "a", "documents": ["b"]})
    assert {slot.info.name for slot in client.app.state.models.loaded_models} == {"tiny", "embedder", "judge"}
    metrics = client.get("/metrics").text
    assert "woolly_texts_total 5.0" in metrics


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/embeddings", {}, "input"),
        ("/v1/embeddings", {"input": [[]]}, None),
        ("/v1/embeddings", {"input": [1, 99999]}, None),
        ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ("/v1/embeddings", {"input": "a", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ("/embedding", {}, "content"),
        ("/embeddings", {"input": "a", "encoding_format": "hex"}, "encoding_format"),
    ],
)
def test_invalid_input_is_a_400_with_a_one_line_error(client, path, body, param):
    reply = client.post(path, json={"model": "embedder", **body})
    assert reply.status_code == 400 and reply.json()["error"]["param"] == param, reply.text


def test_timeout_ends_the_embedding_job(app_with, readers, monkeypatch):
    plain, clock, passed = pooling.wait_for_pooling, time.monotonic, []
    is_held, is_waited_for, go_on = threading.Event(), threading.Event(), threading.Event()

    def hold(engine):
        is_held.set()
        go_on.wait(60)

    def waiting(*given):
        is_waited_for.set()
        return plain(*given)

    def pass_time():
        assert is_waited_for.wait(60)
        while not go_on.is_set() and len(passed) < 1000:
            passed.append(100)
            client.portal.call(asyncio.sleep, 0)
        go_on.set()

    with app_with(models_dir=readers, model=str(readers / "embedder.gguf"), request_timeout=600) as client:
        client.post("/v1/embeddings", json={"input": "a"})
        driver = client.app.state.models.ready("embedder").model.driver
        cancel = driver.cancel_pooling  # which may wait for the engine's thread
        monkeypatch.setattr(driver, "cancel_pooling", lambda job: (go_on.set(), cancel(job)))
        monkeypatch.setattr(pooling, "wait_for_pooling", waiting)
        monkeypatch.setattr("time.monotonic", lambda: clock() + sum(passed))
        threads = [threading.Thread(target=driver.call, args=(hold,)), threading.Thread(target=pass_time)]
        threads[0].start()
        assert is_held.wait(60)
        threads[1].start()
        reply = client.post("/v1/embeddings", json={"input": "b"})
        for thread in threads:
            thread.join()
        assert reply.status_code == 504 and reply.json()["error"]["code"] == "request_timeout"
        assert client.post("/v1/embeddings", json={"input": "a"}).status_code == 200
        assert client.app.state.models.ready("embedder").model.engine.pooling.is_idle


def test_progressing_job_may_take_longer_than_the_timeout(app_with, readers, monkeypatch):
    plain, clock, passed = PoolingRunner._run, time.monotonic, []

    def run(*given):
        passed.append(given)
        for _ in range(3):  # the server has looked meanwhile
            client.portal.call(asyncio.sleep, 0)
        return plain(*given)

    with app_with(models_dir=readers, model=str(readers / "embedder.gguf"), request_timeout=60) as client:
        monkeypatch.setattr("time.monotonic", lambda: clock() + 20 * len(passed))  # as if each batch took that long
        monkeypatch.setattr(PoolingRunner, "_run", run)
        reply = client.post("/v1/embeddings", json={"input": ["b" * 400] * 16})
        assert reply.status_code == 200 and len(reply.json()["data"]) == 16
        assert len(passed) > 3


@pytest.mark.parametrize("path", ["/embedding", "/embeddings"])
def test_model_without_pooling_gives_a_vector_per_token(app_with, tmp_path, path):
    file = write_tiny(ENCODERS["bert-none"], tmp_path / "rows.gguf")
    with LLM(file) as llm:
        wanted = [rows.tolist() for rows in llm.embed_tokens(["sheep", "a goat"])]
    with app_with(models_dir=tmp_path, model=str(file)) as client:
        for field in ("content", "input"):
            reply = client.post(path, json={field: ["sheep", "a goat"]}).json()
            assert reply == [{"index": i, "embedding": rows} for i, rows in enumerate(wanted)]
        refused = client.post("/v1/embeddings", json={"input": "sheep"})
        assert refused.status_code == 400 and refused.json()["error"]["code"] == "wrong_model"
        assert client.post(path, json={"content": "sheep", "dimensions": 4}).status_code == 400


def test_server_without_an_embedding_model_names_one_to_pull(app_with):
    with app_with(strict_models=False) as client:
        reply = client.post("/v1/embeddings", json={"model": "text-embedding-3-small", "input": "sheep"})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    name = models_for("embed")[0]
    assert error["message"] == f"no installed model can embed texts; run `woolly pull {name}`, then request {name}"


def test_unknown_embedding_model_is_rejected_with_the_local_ones(client, readers, app_with):
    with app_with(models_dir=readers) as strict:
        reply = strict.post("/v1/embeddings", json={"model": "text-embedding-3-small", "input": "sheep"})
    assert reply.status_code == 404
    assert "models that can embed texts: embedder" in reply.json()["error"]["message"]
    assert "tiny" not in reply.json()["error"]["message"]


def test_embeddings_count_as_prompts_in_llama_metrics(client):
    def figures():
        lines = (line.split() for line in client.get("/metrics").text.splitlines() if line.startswith("llamacpp:"))
        return {name.removeprefix("llamacpp:"): float(value) for name, value in lines}

    before = figures()
    n_tokens = client.post("/v1/embeddings", json={"model": "embedder", "input": TEXTS}).json()["usage"]["total_tokens"]
    after = figures()
    assert after["prompt_tokens_total"] - before["prompt_tokens_total"] == n_tokens
    assert after["n_decode_total"] > before["n_decode_total"]
    assert after["prompt_seconds_total"] > before["prompt_seconds_total"]
    assert after["tokens_predicted_total"] == before["tokens_predicted_total"]
