"""LLM.embed: shapes, lengths, cuts, and what is refused in one sentence."""

import asyncio

import numpy as np
import pytest

from tests.cases.encoders import ENCODERS
from tests.cases.tiny import TINY, write_tiny
from woolly import LLM, AsyncLLM, RequestError


@pytest.fixture(scope="module")
def llm(tiny_model):
    with LLM(tiny_model, ctx=64, threads=1) as model:
        yield model


def test_one_row_per_text_and_a_string_is_a_list_of_one(llm):
    assert llm.embed(["a", "b", "a"], pooling="mean").shape == (3, 64)
    assert llm.embed("a", pooling="mean").shape == llm.embed([5, 6, 7], pooling="mean").shape == (1, 64)
    assert llm.embed([], pooling="mean").shape == (0, 64)
    assert llm.embed([[5, 6], "ab"], pooling="mean").shape == (2, 64)


def test_embeddings_are_normalized_unless_disabled(llm):
    vectors = llm.embed(["a", "b c"], pooling="last")
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    raw = llm.embed(["a", "b c"], pooling="last", normalize=False)
    np.testing.assert_allclose(raw / np.linalg.norm(raw, axis=1, keepdims=True), vectors, atol=1e-6)
    assert vectors.dtype == np.float32 and vectors.flags.c_contiguous


def test_dimensions_truncate_and_normalize_again(llm):
    whole, short = (llm.embed("wool", pooling="mean", dimensions=n)[0] for n in (None, 16))
    np.testing.assert_allclose(short, whole[:16] / np.linalg.norm(whole[:16]), atol=1e-6)
    for wrong in (0, 65, True, 1.5):
        with pytest.raises(RequestError, match="expected an integer from 1 to 64"):
            llm.embed("wool", pooling="mean", dimensions=wrong)


def test_too_long_text_is_rejected_with_both_numbers_or_truncated(llm):
    with pytest.raises(RequestError, match="text 1 has 99 tokens, but this model takes at most 64") as caught:
        llm.embed(["a", "b" * 99], pooling="mean")
    assert (caught.value.code, caught.value.limit, caught.value.given) == ("context_length", 64, 99)
    job = llm.prepare_embedding(["a", "b" * 99], pooling="mean", truncate=True)
    assert job.n_cut == (0, 35)
    cut = llm.embed(["a", "b" * 99], pooling="mean", truncate=True)
    np.testing.assert_array_equal(cut[1:], llm.embed("b" * 64, pooling="mean"))


def test_context_beyond_the_position_table_is_capped(tmp_path):
    write_tiny(ENCODERS["bert-mean"], tmp_path / "bert.gguf")
    with pytest.warns(UserWarning, match="ctx reduced from 2048 to 64"), LLM(tmp_path / "bert.gguf", ctx=2048) as llm:
        with pytest.raises(RequestError, match="takes at most 64"):
            llm.embed("word " * 100)
        assert llm.embed("word").shape[0] == 1


def test_chat_model_is_rejected_with_the_name_of_an_embedding_model(llm):
    with pytest.raises(RequestError, match=r"it is a chat model, not an embedder; .*such as qwen3-embedding") as caught:
        llm.embed("a")
    assert caught.value.code == "wrong_model"
    with pytest.raises(RequestError, match=r"it is a chat model, not a reranker; .*bge-reranker-v2-m3"):
        llm.rerank("a", ["b"])
    with pytest.raises(RequestError, match="cannot classify texts"):
        llm.classify("a")


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        ([[]], "text 0 is empty"),
        (["a", 5], "text 1: the type is int"),
        ([b"a"], "text 0: the type is bytes"),
        ([[5, 100_000]], "text 0: token 100000 is not in the vocabulary"),
        ([[5, True]], "text 0: token True is not in the vocabulary"),
    ],
)
def test_non_text_is_rejected_by_its_index(llm, texts, sentence):
    with pytest.raises(RequestError, match=sentence):
        llm.embed(texts, pooling="mean")


def test_pooling_is_one_of_three(llm):
    with pytest.raises(RequestError, match="expected mean, cls or last"):
        llm.embed("a", pooling="max")


def test_progress_bar_can_be_shown(llm, capsys):
    assert llm.embed(["a", "b"], pooling="mean", progress=True).shape == (2, 64)
    assert "2/2" in capsys.readouterr().err


def test_coroutines_get_the_same_embeddings(llm, tiny_model):
    async def body():
        async with AsyncLLM(tiny_model, ctx=64, threads=1) as model:
            jobs = (model.embed([text, "x"], pooling="mean", dimensions=8) for text in "abc")
            return await asyncio.gather(*jobs)

    for text, vectors in zip("abc", asyncio.run(body()), strict=True):
        np.testing.assert_array_equal(vectors, llm.embed([text, "x"], pooling="mean", dimensions=8))


@pytest.mark.parametrize("name", ["bert-none", "llama"])
def test_mean_pooling_is_the_mean_of_token_embeddings(tmp_path, name):
    path = write_tiny(ENCODERS[name] if name in ENCODERS else TINY[name], tmp_path / "rows.gguf")
    with LLM(path, chunk=8) as llm:
        texts = ["sheep and goats on a green hill", "a"] if name == "llama" else ["sheep", "a"]
        tables = llm.embed_tokens(texts)
        assert [len(rows) for rows in tables] == [len(llm.tokenize(text)) for text in texts]
        means = np.stack([rows.astype(np.float64).mean(axis=0) for rows in tables])
        np.testing.assert_allclose(means, llm.embed(texts, pooling="mean", normalize=False), rtol=1e-5, atol=1e-5)
        with pytest.raises(RequestError, match="which gives no vector per text"):
            llm.embed(texts, pooling="none")


def test_model_with_built_in_pooling_has_no_token_embeddings(tmp_path):
    with (
        LLM(write_tiny(ENCODERS["bert-mean"], tmp_path / "m.gguf")) as llm,
        pytest.raises(RequestError, match="only supports 'mean'"),
    ):
        llm.embed_tokens("a")
