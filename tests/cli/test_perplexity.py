"""`woolly perplexity`: the figures of llama.cpp's rules, computed here by hand from the model's own logits."""

import json

import numpy as np
import pytest

from tests.cases.tiny import TINY, write_tiny
from tests.cli.terminal import woolly
from woolly import LLM
from woolly.errors import RequestError
from woolly.measure.perplexity import mean_and_error

TEXT = "".join(chr(33 + i * i % 90) for i in range(700)) + "\n"
CTX = 64


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny(TINY["llama"], tmp_path_factory.mktemp("perplexity") / "tiny.gguf")


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    from dataclasses import replace

    return write_tiny(replace(TINY["llama"], name="other"), tmp_path_factory.mktemp("perplexity") / "other.gguf")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("perplexity") / "text.txt"
    path.write_text(TEXT)
    return path


def log_softmax(logits):
    logits = logits.astype(np.float64)
    return (
        logits
        - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
        - logits.max(1, keepdims=True)
    )


def by_hand(path, n_windows):
    """Log-probabilities [token, vocabulary] of the second half of each window, and the tokens that came."""
    rows, came = [], []
    with LLM(path) as llm:
        ids = llm.tokenizer.encode(TEXT[:-1], add_special=True, parse_special=False)
        for i in range(n_windows):
            window = ids[i * CTX : (i + 1) * CTX]
            fed = [llm.tokenizer.bos_id, *window[1:]] if llm.tokenizer.add_bos else window
            rows.append(log_softmax(llm.logits(fed))[CTX // 2 : CTX - 1])
            came += window[CTX // 2 + 1 :]
    return np.concatenate(rows), np.array(came)


def test_perplexity_uses_the_second_half_of_each_window(model, text):
    facts = json.loads(woolly("perplexity", model, text, "--ctx", CTX, "--chunks", "3", "--json"))
    rows, came = by_hand(model, 3)
    surprise = -rows[np.arange(len(came)), came]
    assert facts["chunks"] == 3
    np.testing.assert_allclose(facts["perplexity"], np.exp(surprise.mean()), rtol=1e-5)
    expected = np.exp(surprise.mean()) * surprise.std() / np.sqrt(len(surprise) - 1)
    np.testing.assert_allclose(facts["error"], expected, rtol=1e-4)


def test_changes_apply_to_the_model_but_not_to_the_other(model, text):
    plain = json.loads(woolly("perplexity", model, text, "--ctx", CTX, "-n", 1, "--json"))["perplexity"]
    changed = json.loads(
        woolly("perplexity", model, text, "--ctx", CTX, "-n", 1, "--json", "--rope-freq-base", "50", "--kl", model)
    )
    assert changed["base_perplexity"]["mean"] == pytest.approx(plain) != changed["perplexity"]
    assert changed["kl"]["mean"] > 0
    with pytest.raises(RequestError, match=r"'llama\.none', which this model does not use"):
        woolly("perplexity", model, text, "--ctx", CTX, "-n", 1, "--override-kv", "llama.none=int:1")


def test_all_windows_are_used_by_default(model, text):
    facts = json.loads(woolly("perplexity", model, text, "--ctx", CTX, "--json"))
    with LLM(model) as llm:
        assert facts["chunks"] == len(llm.tokenize(TEXT[:-1])) // CTX


def test_kl_divergence_is_from_the_other_model_to_this_one(model, other, text):
    arguments = ("--ctx", CTX, "--chunks", "2", "--kl", other)
    facts = json.loads(woolly("perplexity", model, text, *arguments, "--json"))
    (ours, _), (base, _) = by_hand(model, 2), by_hand(other, 2)
    kl = (np.exp(base) * (base - ours)).sum(axis=1)
    np.testing.assert_allclose(facts["kl"]["mean"], kl.mean(), rtol=1e-4)
    np.testing.assert_allclose(facts["kl_max"], kl.max(), rtol=1e-4)
    np.testing.assert_allclose(facts["same_top"]["mean"], (ours.argmax(1) == base.argmax(1)).mean())
    said = woolly("perplexity", model, text, *arguments)
    assert all(name in said for name in ("perplexity", "ratio", "KL divergence", "same likeliest token"))


def test_model_has_no_divergence_from_itself(model, text):
    facts = json.loads(woolly("perplexity", model, text, "--ctx", CTX, "--chunks", "1", "--kl", model, "--json"))
    assert facts["kl"]["mean"] < 1e-6
    assert facts["same_top"]["mean"] == 1
    assert facts["ratio"]["mean"] == 1


def test_windows_longer_than_a_batch_give_the_same_result(model, text, monkeypatch):
    from woolly.runtime.cpu import CpuProgram

    whole = json.loads(woolly("perplexity", model, text, "--ctx", CTX, "--chunks", "2", "--json"))
    real = CpuProgram.__init__

    def small(self, *arguments):
        real(self, *arguments)
        self.max_rows = 24

    monkeypatch.setattr(CpuProgram, "__init__", small)
    parts = json.loads(woolly("perplexity", model, text, "--ctx", CTX, "--chunks", "2", "--json"))
    assert parts["perplexity"] == whole["perplexity"]


def test_invalid_arguments_give_a_one_line_error(model, text, tmp_path):
    (tmp_path / "bytes").write_bytes(b"\xff")
    for arguments, expected in {
        (model, text, "--ctx", "400"): r"has \d+ tokens, but a context of 400 needs at least 800",
        (model, text, "--ctx", "2"): "--ctx is 2; expected an integer from 4 to 512",
        (model, text, "--ctx", "64", "--chunks", "0"): "--chunks is 0",
        (model, tmp_path / "none"): "cannot be read",
        (model, tmp_path / "bytes"): "is not UTF-8",
    }.items():
        with pytest.raises(RequestError, match=expected):
            woolly("perplexity", *arguments)


def test_error_of_one_value_is_not_a_number():
    assert np.isnan(mean_and_error(np.ones(1)).error)
