"""Vectors and scores of whole texts agree with transformers, and no text's bits depend on its batch."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.cases.encoders import ENCODERS, PAIR, TEXTS
from tests.cases.families import FAMILIES
from tests.cases.tiny import write_tiny
from woolly import LLM
from woolly.errors import ModelError, RequestError, UnsupportedError
from woolly.gguf import open_gguf
from woolly.measure.bench import Bench
from woolly.measure.perplexity import Scorer
from woolly.models import trace
from woolly.runtime import Batch, Options, get_backend, pages_for

GOLDENS = Path(__file__).parent.parent / "goldens"
ALL = [*TEXTS.values(), PAIR]


def batch(texts, pooling):
    """Each text in pages of its own, last pages first; the rows that pooling needs."""
    sequences, page = [], 11
    for ids in texts:
        n = pages_for(len(ids))
        sequences.append((ids, 0, list(range(page - n + 1, page + 1))[::-1]))
        page -= n
    return Batch.of(sequences, range(sum(map(len, texts))) if pooling == "none" else None)


def vectors(program, texts):
    return program.run(batch(texts, program.plan.pooling), program.new_state(12)).copy()


@pytest.mark.parametrize("name", ENCODERS)
def test_encoder_matches_transformers(name, tmp_path):
    golden = np.load(GOLDENS / f"tiny-{name}.npz")
    want = np.concatenate([golden[key] for key in golden.files])
    with open_gguf(write_tiny(ENCODERS[name], tmp_path / "tiny.gguf")) as file:
        plan = trace(file)
        exact = vectors(get_backend("reference").compile(plan, file.tensors, Options()), ALL)
        got = {
            threads: get_backend("cpu").compile(plan, file.tensors, Options(threads=threads, kv_type="f32"))
            for threads in (1, 3)
        }
        together = vectors(got[1], ALL)
        np.testing.assert_array_equal(vectors(got[3], ALL), together)
        alone = np.concatenate([vectors(got[3], [ids]) for ids in ALL])
        np.testing.assert_array_equal(alone, together)
    assert exact.shape == want.shape == together.shape
    for ours, bound in ((exact, 1e-5), (together, 3e-5)):
        error = np.linalg.norm(ours - want, axis=1) / np.linalg.norm(want, axis=1)
        assert error.max() < bound
        cosines = (ours * want).sum(axis=1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(want, axis=1)
        assert cosines.min() > 0.999999


@pytest.fixture
def opened(tmp_path):
    """Opens a tiny model, with some of its keys changed."""
    files = []

    def open_(tiny, **changes):
        extra = {key: value for key, value in (tiny.extra | changes).items() if value is not None}
        path = write_tiny(replace(tiny, extra=extra), tmp_path / f"{len(files)}.gguf")
        files.append(open_gguf(path))
        return files[-1]

    yield open_
    for file in files:
        file.close()


def test_decoder_embeddings_follow_the_file_or_the_caller(opened):
    plain, embedder = opened(FAMILIES["qwen3"]), opened(ENCODERS["qwen3-last"])
    plans = [trace(plain), trace(embedder), trace(embedder, "logits"), trace(plain, pooling="mean")]
    assert [plan.result for plan in plans] == ["logits", "embeddings", "logits", "embeddings"]
    assert [plan.pooling for plan in plans] == [None, "last", None, "mean"]
    assert [plan.width for plan in plans] == [320, 64, 320, 64]
    assert {plan.n_tokens for plan in plans} == {320}
    assert all(plan.is_causal for plan in plans)
    bidirectional = trace(opened(FAMILIES["llama"], **{"attention.causal": False}))
    assert (bidirectional.result, bidirectional.pooling, bidirectional.is_causal) == ("embeddings", "none", False)


def test_scores_are_named_by_the_file(opened):
    assert trace(opened(ENCODERS["roberta-rank"])).labels == ("bad", "fair", "good")
    assert trace(opened(ENCODERS["bert-rank"])).labels == ()
    assert trace(opened(ENCODERS["bert-rank"], pooling_type=None)).result == "scores"  # the head says it
    assert trace(opened(ENCODERS["bert-rank"]), pooling="cls").result == "embeddings"
    with pytest.raises(ModelError, match="has 2 labels, but its head returns 1 scores"):
        trace(opened(ENCODERS["bert-rank"], **{"classifier.output_labels": ["a", "b"]}))


def test_unsupported_outputs_are_rejected(opened):
    with pytest.raises(UnsupportedError, match="returns embeddings, not logits"):
        trace(opened(ENCODERS["bert-mean"]), "logits")
    with pytest.raises(UnsupportedError, match="has no reranking head"):
        trace(opened(ENCODERS["bert-mean"]), "scores")
    with pytest.raises(UnsupportedError, match="has no reranking head"):
        trace(opened(FAMILIES["llama"]), pooling="rank")
    with pytest.raises(UnsupportedError, match="pooling_type is 9"):
        trace(opened(ENCODERS["bert-mean"], pooling_type=9))
    with pytest.raises(RequestError, match="does not specify a pooling; choose one of: none, mean, cls, last"):
        trace(opened(FAMILIES["llama"]), "embeddings")
    with pytest.raises(UnsupportedError, match="embeddings are not supported"):
        trace(opened(FAMILIES["starcoder2"]), pooling="mean")


def test_all_layers_of_an_encoder_share_one_entry(opened):
    plan = trace(opened(ENCODERS["gemma-embedding"]))
    assert len(plan.state) == 1 and sum(step.op == "attention" for step in plan.steps) == 7


def test_text_in_two_batches_is_rejected(opened):
    file = opened(ENCODERS["bert-mean"])
    program = get_backend("cpu").compile(trace(file), file.tensors, Options(threads=1))
    with pytest.raises(ValueError, match="whole in one batch"):
        program.run(Batch.of([([1, 2], 3, [0])]), program.new_state(1))
    with pytest.raises(ValueError, match="position 64 is beyond the 64"):
        program.run(Batch.of([([1] * 65, 0, [0, 1, 2])]), program.new_state(3))


def test_only_generative_models_are_timed_and_scored(tmp_path):
    path = write_tiny(ENCODERS["bert-mean"], tmp_path / "tiny.gguf")
    with open_gguf(path) as file:
        program = get_backend("cpu").compile(trace(file), file.tensors, Options(threads=1))
        with pytest.raises(RequestError, match="returns embeddings; only generative models can be benchmarked"):
            Bench(program, [])
    with pytest.raises(UnsupportedError, match="returns embeddings, not logits"):
        Scorer(str(path), 32, threads=1, kv_type=None, backend="auto")


def test_hidden_states_of_an_encoder_cover_the_complete_text(tmp_path):
    path = write_tiny(replace(ENCODERS["eurobert"], context=1024), tmp_path / "tiny.gguf")
    ids = np.random.RandomState(3).randint(0, 264, 600).tolist()  # more than one chunk of a decoder
    with LLM(path, threads=2) as llm:
        hidden = llm.hidden(ids, "output_norm")
        np.testing.assert_allclose(hidden.mean(axis=0), llm.embed([ids], normalize=False)[0], rtol=1e-4, atol=1e-5)
