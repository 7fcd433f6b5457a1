"""The benchmarks start, say what they need, and calculate rightly. What they measure is not tested."""

import importlib
import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases.tiny import TINY, write_tiny

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    """Imports a file of the folder as the scripts import each other."""
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny(TINY["llama"], tmp_path_factory.mktemp("benchmarks") / "tiny.gguf")


def script(name, *arguments):
    command = [sys.executable, str(FOLDER / name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("name", ["versus.py", "kl.py"])
def test_help_names_the_options(name):
    done = script(name, "--help")
    assert done.returncode == 0
    assert "--peer-python" in done.stdout


def test_without_a_peer_one_is_told_how_to_get_it(tiny):
    done = script("versus.py", tiny)
    assert done.returncode == 2
    assert "pip install llama-cpp-python" in done.stderr


@pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is not None, reason="llama-cpp-python is installed here")
@pytest.mark.parametrize("python", [sys.executable, "/nowhere/python"])
def test_an_environment_without_the_peer_is_one_sentence(tiny, python):
    done = script("versus.py", tiny, "--peer-python", python)
    assert done.returncode == 1
    assert done.stderr.startswith("versus.py: error: llama.cpp")
    assert "pip install llama-cpp-python" in done.stderr
    assert done.stderr.count("\n") == 1


def test_our_server_answers_line_by_line_and_survives_a_wrong_request(load, tiny):
    servers = load("servers")
    with servers.start_ours() as ours:
        assert ours.ask("load", model=str(tiny), threads=1, ctx=64, sequences=2)["seconds"] > 0
        with pytest.raises(servers.ServerError, match="Woolly: "):
            ours.ask("fly")
        assert ours.ask("prompt", n=8)["seconds"] > 0
        assert ours.ask("generate", n=2, sequences=2)["n_bytes"] > 0
        assert ours.ask("peak")["mib"] > 1


def test_the_engine_is_measured_beside_its_program(tiny):
    done = script("engine.py", tiny, "--batch", 2, "--tokens", 12, "--long", 400, "--short", 8, "--chunk", 64)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["greedy"]["step_ms"] >= report["greedy"]["native_ms"] > 0
    assert report["short_beside_long"]["first_token_chunks"] > 1


def test_a_ratio_is_of_medians_and_above_one_where_ours_is_better(load):
    comparison = load("comparison").Comparison
    rates = comparison("rate", "tokens/s", "more", (30.0, 10.0, 20.0), (10.0, 10.0, 40.0))
    assert rates.ratio == 2.0
    assert rates.ratios == (3.0, 1.0, 0.5)
    times = comparison("time", "s", "less", (2.0, 1.0, 4.0), (3.0, 3.0, 3.0))
    assert times.ratio == 1.5
    assert times.ratios == (1.5, 3.0, 0.75)
    assert rates.as_json()["ours"] == 20.0
    assert "**2.00**" in load("comparison").comparison_table([rates, times])


def test_spread_is_the_range_over_the_median(load):
    assert load("comparison").spread((8.0, 10.0, 12.0)) == pytest.approx(0.4)


def test_a_figure_tries_more_settings_of_the_peer_where_sequences_share_a_cache(load):
    figure = load("versus").Figure
    assert [str(s) for s in figure("x", "generate", 8, 1).settings] == [
        "flash attention on, shared cache",
        "flash attention off, shared cache",
    ]
    assert len(figure("x", "generate", 8, 4).settings) == 4
    assert figure("x", "generate", 8, 4).rate({"seconds": 2.0}) == 16


@given(logits=st.lists(st.floats(-20, 20), min_size=2, max_size=8), shift=st.floats(-100, 100))
def test_a_distribution_has_no_divergence_from_itself_whatever_is_added_to_its_logits(logits, shift):
    kl = _kl()
    p, q = (kl.log_softmax(np.array([row])) for row in (logits, np.add(logits, shift)))
    assert np.exp(p).sum() == pytest.approx(1)
    assert abs(kl.kl_divergence(p, q)[0]) < 1e-9


def test_divergence_is_in_nats_and_from_the_reference():
    kl = _kl()
    p, q = np.log([[0.75, 0.25]]), np.log([[0.5, 0.5]])
    assert kl.kl_divergence(p, q)[0] == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    seen = kl.Divergence("x")
    seen.add(np.tile(p, (3, 1)), np.tile(q[:, ::-1] + [[0, 1]], (3, 1)), [0, 1])
    facts = seen.as_json()
    assert (facts["positions"], facts["top1_agreement"], facts["standard_error"]) == (3, 0.0, 0.0)
    assert len(seen.surprise) == 2


def test_perplexity_of_a_uniform_distribution_is_the_size_of_the_vocabulary():
    seen = _kl().Divergence("x")
    seen.add(np.zeros((100, 7), np.float32), np.zeros((100, 7), np.float32), [i % 7 for i in range(1, 100)])
    assert seen.as_json()["perplexity"] == pytest.approx(7)
    assert seen.as_json()["mean_kl"] == 0


def test_chunks_cover_the_text_and_begin_with_bos_where_there_is_one():
    chunks = _kl().chunks
    assert list(chunks([1, 2, 3, 4, 5], 2, None)) == [[1, 2], [3, 4], [5]]
    assert list(chunks([1, 2, 3, 4, 5], 2, 0)) == [[0, 2], [0, 4], [0]]


def _kl():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        return importlib.import_module("kl")
