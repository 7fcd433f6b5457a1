"""The SDKs of OpenAI, Ollama and Cohere embed and rerank; a chat model answers beside from the same port."""

import contextlib

import cohere
import httpx
import numpy as np
import ollama
import openai
import pytest

from tests.cases.texts import write_readers
from tests.cases.tiny import TINY, write_tiny
from tests.clients.conftest import listening
from woolly import LLM
from woolly.serving import Settings, create_app

TEXTS = ["sheep", "a goat on the hill"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_readers(tmp_path_factory.mktemp("readers"), "embedder", "ranker")
    write_tiny(TINY["llama"], folder / "tiny.gguf")
    return folder


@pytest.fixture(scope="module")
def url(folder):
    with listening(create_app(Settings(models_dir=folder, threads=1, sessions_file=folder / "sessions.db"))) as url:
        yield url


@pytest.fixture(scope="module")
def vectors(folder):
    with LLM(folder / "embedder.gguf", threads=1) as llm:
        return llm.embed(TEXTS)


def test_openai_embeddings_next_to_a_chat(url, vectors):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        for options in ({}, {"encoding_format": "float"}):
            reply = client.embeddings.create(model="embedder", input=TEXTS, **options)
            np.testing.assert_array_equal(np.array([one.embedding for one in reply.data], np.float32), vectors)
        assert reply.usage.total_tokens > 0
        assert client.completions.create(model="tiny", prompt="hi", max_tokens=2).choices[0].text is not None
        (short,) = client.embeddings.create(model="text-embedding-3-small", input="sheep", dimensions=8).data
        assert len(short.embedding) == 8
        with pytest.raises(openai.BadRequestError, match="tiny cannot embed texts: wrong model type; use embedder"):
            client.embeddings.create(model="tiny", input="sheep")


def test_ollama_embeddings(url, vectors):
    client = ollama.Client(host=url)
    with contextlib.closing(client._client):
        check_ollama(client, vectors)


def check_ollama(client, vectors):
    np.testing.assert_array_equal(np.array(client.embed("embedder", TEXTS).embeddings, np.float32), vectors)
    assert len(client.embeddings("embedder", "sheep").embedding) == 64
    assert "embedding" in client.show("embedder").capabilities
    with pytest.raises(ollama.ResponseError, match="input length exceeds the context length"):
        client.embed("embedder", "b" * 600, truncate=False)


def test_cohere_rerank_and_embed(url, vectors):
    with httpx.Client() as web:
        check_cohere(url, web, vectors)


def check_cohere(url, web, vectors):
    client = cohere.ClientV2(api_key="any", base_url=url, httpx_client=web)
    reply = client.rerank(model="ranker", query="food", documents=["grass", "oil", "hay"], top_n=2)
    assert len(reply.results) == 2 and reply.results[0].relevance_score >= reply.results[1].relevance_score
    found = client.embed(model="embedder", texts=TEXTS, input_type="search_document", embedding_types=["float"])
    np.testing.assert_array_equal(np.array(found.embeddings.float_, np.float32), vectors)
    older = cohere.Client(api_key="any", base_url=url, httpx_client=web)
    assert older.rerank(model="ranker", query="food", documents=["grass", "oil", "hay"]).results[0].relevance_score
    with pytest.raises(cohere.core.ApiError, match="tiny cannot rank documents"):
        older.rerank(model="tiny", query="a", documents=["b"])
