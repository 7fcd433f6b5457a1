"""Ranks, scores and labels over HTTP, in the shapes of Jina, Cohere, TEI and vLLM."""

import numpy as np
import pytest

from woolly import LLM

QUERY = "what do sheep eat?"
DOCUMENTS = ["grass", "engines need oil", "sheep eat grass and hay"]


@pytest.fixture(scope="module")
def scores(readers):
    found = {}
    for name in ("ranker", "judge"):
        with LLM(readers / f"{name}.gguf", threads=1) as llm:
            found[name] = llm.rerank(QUERY, DOCUMENTS), llm.rerank(QUERY, DOCUMENTS, raw=True)
    return found


def order_of(values):
    return sorted(range(len(values)), key=lambda index: -values[index])


@pytest.mark.parametrize("model", ["ranker", "judge"])
@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/reranking", "/v1/reranking", "/v2/rerank"])
def test_best_document_comes_first(client, scores, path, model):
    body = {"model": model, "query": QUERY, "documents": [DOCUMENTS[0], {"text": DOCUMENTS[1]}, DOCUMENTS[2]]}
    reply = client.post(path, json=body).json()
    values = scores[model][0]
    assert [one["index"] for one in reply["results"]] == order_of(values)
    for one in reply["results"]:
        assert one["relevance_score"] == pytest.approx(values[one["index"]]) and 0 <= one["relevance_score"] <= 1
        assert "document" not in one
    assert reply["model"] == model and reply["usage"]["total_tokens"] > 0 and reply["meta"] and reply["id"]


def test_top_n_with_documents_and_raw_scores(client, scores):
    body = {"model": "ranker", "query": QUERY, "documents": DOCUMENTS, "top_n": 2, "return_documents": True}
    results = client.post("/v1/rerank", json={**body, "raw_scores": True}).json()["results"]
    raw = scores["ranker"][1]
    assert [one["index"] for one in results] == order_of(raw)[:2]
    for one in results:
        assert one["document"] == {"text": DOCUMENTS[one["index"]]}
        assert one["relevance_score"] == pytest.approx(float(raw[one["index"]]))


def test_tei_gets_a_list(client, scores):
    body = {"model": "ranker", "query": QUERY, "texts": DOCUMENTS, "return_text": True}
    reply = client.post("/rerank", json=body).json()
    assert [one["index"] for one in reply] == order_of(scores["ranker"][0])
    assert reply[0]["text"] == DOCUMENTS[reply[0]["index"]] and set(reply[0]) == {"index", "score", "text"}


def test_score_pairs_one_with_many_and_many_with_many(client, scores):
    one = client.post("/v1/score", json={"model": "ranker", "text_1": QUERY, "text_2": DOCUMENTS}).json()
    many = client.post("/score", json={"model": "ranker", "queries": [QUERY] * 3, "documents": DOCUMENTS}).json()
    assert [item["score"] for item in one["data"]] == [item["score"] for item in many["data"]]
    np.testing.assert_allclose([item["score"] for item in one["data"]], scores["ranker"][0], rtol=1e-6)


def test_score_of_an_embedding_model_is_the_cosine(client, readers):
    reply = client.post("/v1/score", json={"model": "embedder", "text_1": QUERY, "text_2": DOCUMENTS}).json()
    with LLM(readers / "embedder.gguf", threads=1) as llm:
        query, *documents = llm.embed([QUERY, *DOCUMENTS])
    np.testing.assert_allclose([item["score"] for item in reply["data"]], np.array(documents) @ query, atol=1e-6)


def test_labels_have_probabilities(client, readers):
    reply = client.post("/v1/classify", json={"model": "classifier", "input": ["wool", "horns"]}).json()
    with LLM(readers / "classifier.gguf", threads=1) as llm:
        wanted = llm.classify(["wool", "horns"])
    for one, label in zip(reply["data"], wanted, strict=True):
        assert one["label"] == str(label) and one["labels"] == ["sheep", "goat", "neither"]
        assert one["probs"] == pytest.approx(list(label.scores.values())) and sum(one["probs"]) == pytest.approx(1)


def test_documents_are_truncated_to_max_tokens_per_doc(client):
    ask = {"model": "ranker", "query": "a"}
    cut = client.post("/v2/rerank", json={**ask, "documents": ["bcdefg", "bc"], "max_tokens_per_doc": 3})
    whole = client.post("/v2/rerank", json={**ask, "documents": ["bcd", "bc"]})
    assert cut.json()["results"] == whole.json()["results"]
    assert cut.headers["x-woolly-truncated"] == "0" and "x-woolly-truncated" not in whole.headers


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/v1/rerank", {"query": "a"}, "one of documents and texts"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "texts": ["b"]}, "one of documents and texts"),
        ("/v1/rerank", {"query": "a", "documents": []}, "documents: empty"),
        ("/v1/rerank", {"query": "a", "texts": []}, "texts: empty"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": 0}, "at least 1"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "max_tokens_per_doc": 0}, "at least 1"),
        (
            "/v1/rerank",
            {"query": "a", "documents": ["b" * 600]},
            "document 0 has 601 tokens, but this model takes at most 512",
        ),
        (
            "/v1/rerank",
            {"query": "a" * 600, "documents": ["b"], "truncate": True},
            "the query has 600 tokens, but this model takes at most 512",
        ),
        ("/v1/rerank", {"model": "classifier", "query": "a", "documents": ["b"]}, "cannot rank documents"),
        ("/v1/rerank", {"model": "tiny", "query": "a", "documents": ["b"]}, "cannot rank documents"),
        ("/v1/classify", {"model": "embedder", "input": "a"}, "cannot classify texts"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, "2 and 3 texts cannot be paired"),
        ("/v1/score", {"text_1": "a"}, "a string or a list of strings"),
    ],
)
def test_invalid_ranking_gives_a_one_line_error(client, path, body, says):
    reply = client.post(path, json={"model": "ranker", **body})
    assert reply.status_code == 400 and says in reply.json()["error"]["message"], reply.text


def test_v2_errors_have_the_cohere_format(client):
    reply = client.post("/v2/rerank", json={"model": "none", "query": "a", "documents": ["b"]})
    assert reply.status_code == 404 and "unknown model 'none'" in reply.json()["message"]
