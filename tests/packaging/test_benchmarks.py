"""The benchmarks start, say what they need, and calculate rightly. What they measure is not tested."""

import contextlib
import dataclasses
import importlib
import importlib.util
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import fork_server
from woolly import LLM
from woolly.gguf import open_gguf
from woolly.measure.bench import token_at
from woolly.quant import GGMLType

ROOT = Path(__file__).resolve().parents[2]


def load(name):
    return importlib.import_module(f"benchmarks.{name}")


def script(name, *arguments):
    command = [sys.executable, "-m", f"benchmarks.{name}", *map(str, arguments)]
    return fork_server.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("name", ["versus", "kl"])
def test_help_names_the_options(name):
    done = script(name, "--help")
    assert done.returncode == 0
    assert "--peer-python" in done.stdout


def test_missing_peer_error_says_how_to_get_it(tiny_model):
    done = script("versus", tiny_model)
    assert done.returncode == 2
    assert "pip install llama-cpp-python" in done.stderr


@pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is not None, reason="llama-cpp-python is installed here")
@pytest.mark.parametrize("python", [sys.executable, "/nowhere/python"])
def test_environment_without_the_peer_gives_a_one_line_error(tiny_model, python):
    done = script("versus", tiny_model, "--peer-python", python)
    assert done.returncode == 1
    assert done.stderr.startswith("versus: error: llama.cpp")
    assert "pip install llama-cpp-python" in done.stderr
    assert done.stderr.count("\n") == 1


def test_server_answers_line_by_line_and_survives_an_invalid_request(tiny_model):
    servers = load("versus.process")
    with servers.start_ours() as ours:
        loaded = ours.ask("load", model=str(tiny_model), threads=1, ctx=64, sequences=2)
        assert loaded["seconds"] > 0
        assert loaded["system"].startswith("CPU, ") and loaded["bandwidth_gbs"] is None
        with pytest.raises(servers.ServerError, match="Woolly: "):
            ours.ask("fly")
        assert ours.ask("prompt", n=8)["seconds"] > 0
        assert ours.ask("generate", n=2, sequences=2)["n_bytes"] > 0
        assert ours.ask("prompt", n=8, depth=16)["n_bytes"] > ours.ask("prompt", n=8)["n_bytes"]
        assert ours.ask("first_token", text="seven sheep")["n_tokens"] > 2
        assert ours.ask("peak")["mib"] > 1


def test_attention_keeps_the_best_of_alternating_rounds(monkeypatch):
    attention = load("attention")
    said = iter(["f16 64 4 6.50 3.25 aa", "f16 64 4 7.75 3.88 aa", "f16 64 4 6.75 3.38 aa", "f16 64 4 7.50 3.75 aa"])
    ran = []

    def run(command, **_):
        ran.append(command[0])
        return SimpleNamespace(stdout=next(said) + "\n")

    monkeypatch.setattr(attention.subprocess, "run", run)
    before, after = attention.best([Path("before"), Path("after")], rounds=2)
    assert ran == ["before", "after"] * 2
    assert before == {("f16", "64", "4"): (6.75, 3.38, "aa")} and after == {("f16", "64", "4"): (7.75, 3.88, "aa")}


def test_engine_is_measured_next_to_its_program(tiny_model):
    done = script("engine", tiny_model, "--batch", 2, "--tokens", 12, "--long", 400, "--short", 8, "--chunk", 64)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["greedy"]["step_ms"] >= report["greedy"]["native_ms"] > 0
    assert report["short_beside_long"]["first_token_chunks"] > 1


def test_ratio_uses_medians_and_is_above_one_if_woolly_is_faster():
    comparison = load("versus.comparison").Comparison
    rates = comparison("rate", "tokens/s", "more", (30.0, 10.0, 20.0), (10.0, 10.0, 40.0))
    assert rates.ratio == 2.0
    assert rates.ratios == (3.0, 1.0, 0.5)
    times = comparison("time", "s", "less", (2.0, 1.0, 4.0), (3.0, 3.0, 3.0))
    assert times.ratio == 1.5
    assert times.ratios == (1.5, 3.0, 0.75)
    assert rates.as_json()["ours"] == 20.0
    assert "**2.00**" in load("versus.comparison").comparison_table([rates, times])


def test_spread_is_the_range_over_the_median():
    assert load("versus.comparison").spread((8.0, 10.0, 12.0)) == pytest.approx(0.4)


def test_more_peer_settings_are_tried_where_they_may_matter():
    figure = load("versus.figures").Figure
    assert [str(s) for s in figure("generate", 8, 1).settings] == [
        "flash attention on, shared cache, ubatch 512",
        "flash attention off, shared cache, ubatch 512",
    ]
    assert len(figure("generate", 8, 4).settings) == 4
    assert {s.ubatch for s in figure("prompt", 2048).settings} == {512, 2048}
    assert {s.ubatch for s in figure("prompt", 512).settings} == {512}


def test_measurement_is_a_rate_or_a_time():
    figure = load("versus.figures").Figure
    assert figure("generate", 8, 4).value({"seconds": 2.0}) == 16
    assert figure("first_token", 512).value({"seconds": 2.0}) == 2.0
    assert figure("first_token", 512).better == "less"


def test_tests_are_selected_by_group_or_name_and_capped_to_the_context():
    figures = load("versus.figures")

    def names(tests, limit=100000):
        found, starts = figures.plan(tests.split(","), [128, 2048], 64, [1, 8], 8192, limit)
        return [figure.name for figure in found] + starts

    assert names("prefill,decode,batch") == ["pp128", "pp2048", "tg64", "tg64x8"]
    assert names("depth") == ["pp2048 @ d8192"]
    assert names("depth", 8192) == ["pp2048 @ d6144"]
    assert names("prefill,depth", 1024) == ["pp128", "pp128 @ d896"]
    assert names("tg16x4,pp512@d4096,pp1024,memory,load", 2000) == ["tg16x4", "pp1024", "memory", "load"]
    assert names("first-token") == ["first token, 512 words"]
    for wrong in ("speed", "pp0", "pp512x4", "tg"):
        with pytest.raises(figures.UnknownTestError, match=wrong):
            names(wrong)


def test_no_two_rounds_share_a_text_prefix():
    text = load("versus.figures").text
    texts = [text(64, turn) for turn in range(-1, 6)]
    assert len({words[:2] for words in texts}) == len(texts)
    assert {len(words.split()) for words in texts} == {65}
    assert max(map(len, texts)) < 8 * 65  # what the peer's context holds


def test_both_engines_compute_the_same_tokens():
    theirs = load("versus.peer").token_at
    assert all(theirs(i, s) == token_at(i, s) for i in (0, 1, 999, 1000, 8191) for s in range(64))


def test_threads_are_those_of_the_engine(monkeypatch):
    versus = load("versus.__main__")
    monkeypatch.setattr(versus, "default_threads", lambda: 77)
    assert versus.parser().parse_args(["x.gguf"]).threads == 77
    assert versus.parser().parse_args(["x.gguf", "-t", "3"]).threads == 3


def test_first_engine_alternates_between_rounds(monkeypatch, tiny_model):
    versus = load("versus.__main__")
    asked = []

    def server(name):
        def ask(do, **_):
            asked.append((name, do))
            return {"seconds": 1.0, "mib": 1.0, "system": "CPU", "bandwidth_gbs": None}

        return contextlib.nullcontext(SimpleNamespace(ask=ask))

    monkeypatch.setattr(versus, "measure_bandwidth", lambda *_: asked.append(("round", "")) or 1.0)
    monkeypatch.setattr(versus, "start_ours", lambda: server("ours"))
    monkeypatch.setattr(versus, "start_peer", lambda python: server("theirs"))
    options = versus.parser().parse_args([str(tiny_model), "--tests", "pp8,load", "--pause", "0", "--load-rounds", "3"])
    vars(options).update(rounds=3, prompt=[8], generate=1, batch=[1], depth=1, quick=True)
    subject = versus.Versus(options, lambda text: None)
    subject.rates(server("theirs").enter_result, server("ours").enter_result)
    rounds = asked[asked.index(("round", "")) :]
    alternating = ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
    assert [name for name, do in rounds if do == "prompt"] == alternating
    del asked[:]
    subject.starts()
    assert [name for name, do in asked if do == "load"] == alternating


# As much of llama_cpp as the peer calls. Its contexts check that no position is computed twice or left out.
FAKE_PEER = """
import ctypes, types
__version__ = "0.0"
llama_token = ctypes.c_int32
llama_log_callback = lambda f: f
def llama_print_system_info(): return b"CPU : FAKE = 1 | "
def llama_backend_init(): pass
def llama_log_set(*_): pass
def llama_model_default_params(): return types.SimpleNamespace()
def llama_model_load_from_file(path, params): return "model"
def llama_model_get_vocab(model): return "vocabulary"
def llama_context_default_params(): return types.SimpleNamespace()
def llama_init_from_model(model, p):
    return types.SimpleNamespace(params=p, next=[0] * p.n_seq_max)
def llama_free(context): context.next = None
def llama_get_memory(context): return context
def llama_memory_clear(context, data): context.next = [0] * len(context.next)
def llama_memory_seq_rm(context, sequence, first, last): context.next[sequence] = first
def llama_batch_init(n, embd, sequences):
    names = ("token", "pos", "n_seq_id", "logits")
    return types.SimpleNamespace(seq_id=[[0] for _ in range(n)], **{name: [0] * n for name in names})
def llama_decode(context, batch):
    for i in range(batch.n_tokens):
        sequence = batch.seq_id[i][0]
        if batch.pos[i] != context.next[sequence]: return -1
        context.next[sequence] += 1
    return 0 if sum(context.next) <= context.params.n_ctx else 1
def llama_synchronize(context): pass
def llama_batch_free(batch): pass
def llama_sampler_init_greedy(): return "greedy"
def llama_sampler_free(sampler): pass
def llama_sampler_sample(sampler, context, row): return 7
def llama_tokenize(vocabulary, text, n, ids, size, special, parse): return len(text.split())
def llama_token_to_piece(*_): return 1
"""


@pytest.fixture
def fake_peer(tmp_path):
    """A Python whose llama_cpp computes nothing."""
    (tmp_path / "llama_cpp.py").write_text(FAKE_PEER)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def test_one_command_compares_everything_and_writes_a_report(tiny_model, fake_peer, tmp_path):
    folder = tmp_path / "report"
    size = (
        "-p",
        "8,40",
        "-n",
        "3",
        "-b",
        "1,2,4",
        "-d",
        "64",
        "-r",
        "2",
        "--load-rounds",
        "1",
        "-t",
        "1",
        "--pause",
        "0",
    )
    done = script("versus", tiny_model, "--peer-python", fake_peer, "--quick", *size, "--report", folder)
    assert done.returncode == 0, done.stderr
    names = ["pp8", "pp40", "tg3", "tg3x2", "tg3x4", "pp40 @ d64", "first token, 64 words"]
    names += ["load to first token", "peak memory"]
    rows = [line.split("|")[1].strip() for line in done.stdout.splitlines() if line.startswith("|")]
    assert rows[2 : 2 + len(names)] == names
    assert sorted(path.name for path in folder.iterdir()) == [
        "tiny-batch.svg",
        "tiny-prompt.svg",
        "tiny-ratios.svg",
        "tiny.json",
        "tiny.md",
    ]
    report = (folder / "tiny.md").read_text()
    for expected in ("(tiny-ratios.svg)", "llama-cpp-python 0.0 (CPU : FAKE = 1)", "read bandwidth", "(CPU, "):
        assert expected in report
    assert str(tmp_path) not in report
    assert "python -m benchmarks.versus tiny.gguf --peer-python PEER/bin/python --quick -p 8,40" in report
    facts = json.loads((folder / "tiny.json").read_text())
    assert len(facts["comparisons"]["tg3x4"]["rounds"]) == 2
    assert facts["settings"]["tg3x4"].startswith("flash attention o")
    for name in ("ratios", "batch", "prompt"):
        ElementTree.parse(folder / f"tiny-{name}.svg")


def test_unknown_test_gives_a_one_line_error(tiny_model, fake_peer):
    done = script("versus", tiny_model, "--peer-python", fake_peer, "--tests", "speed")
    assert done.returncode == 1
    assert done.stderr.startswith("versus: error: 'speed' is not a test; name some of prefill,")
    assert done.stderr.count("\n") == 1


@given(logits=st.lists(st.floats(-20, 20), min_size=2, max_size=8), shift=st.floats(-100, 100))
def test_distribution_has_no_divergence_from_itself_with_shifted_logits(logits, shift):
    kl = load("kl")
    p, q = (kl.log_softmax(np.array([row])) for row in (logits, np.add(logits, shift)))
    assert np.exp(p).sum() == pytest.approx(1)
    assert abs(kl.kl_divergence(p, q)[0]) < 1e-9


def test_divergence_is_in_nats_and_from_the_reference():
    kl = load("kl")
    p, q = np.log([[0.75, 0.25]]), np.log([[0.5, 0.5]])
    assert kl.kl_divergence(p, q)[0] == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    seen = kl.Divergence("x")
    seen.add(np.tile(p, (3, 1)), np.tile(q[:, ::-1] + [[0, 1]], (3, 1)), [0, 1])
    facts = seen.as_json()
    assert (facts["positions"], facts["top1_agreement"], facts["standard_error"]) == (3, 0.0, 0.0)
    assert len(seen.surprise) == 2


def test_perplexity_of_a_uniform_distribution_is_the_vocabulary_size():
    seen = load("kl").Divergence("x")
    seen.add(np.zeros((100, 7), np.float32), np.zeros((100, 7), np.float32), [i % 7 for i in range(1, 100)])
    assert seen.as_json()["perplexity"] == pytest.approx(7)
    assert seen.as_json()["mean_kl"] == 0


def test_chunks_cover_the_text_and_begin_with_bos_if_there_is_one():
    chunks = load("kl").chunks
    assert list(chunks([1, 2, 3, 4, 5], 2, None)) == [[1, 2], [3, 4], [5]]
    assert list(chunks([1, 2, 3, 4, 5], 2, 0)) == [[0, 2], [0, 4], [0]]


def test_random_weights_of_a_shape_give_a_runnable_model(tiny_model, tmp_path):
    shapes = load("shapes")
    small = shapes.Shape("qwen3moe", 2, 256, 256, 4, 2, 64, 1e6, experts=4, used=2, has_qk_norm=True)
    small = dataclasses.replace(small, keys={"expert_feed_forward_length": 256}, is_tied=False)
    path = tmp_path / "shape.gguf"
    shapes.Maker(path, small, "Q4_K_M", 0).write(tiny_model)
    with LLM(path, ctx=64) as llm:
        assert len(llm.generate("a", max_tokens=4, ignore_eos=True).token_ids) == 4
    with open_gguf(path) as file:
        types = {file.tensors[f"blk.1.{name}.weight"].type for name in ("attn_q", "ffn_gate_exps", "ffn_down_exps")}
    assert types == {GGMLType.Q4_K, GGMLType.Q6_K}


def test_recurrent_and_latent_shapes_give_runnable_models(tiny_model, tmp_path):
    shapes = load("shapes")
    hybrid, latent = shapes.SHAPES["qwen3.5-4b"], shapes.SHAPES["deepseek-v2-lite"]
    ssm = {"ssm.state_size": 64, "ssm.group_count": 2, "ssm.time_step_rank": 4, "ssm.inner_size": 256}
    small = dataclasses.replace(hybrid, layers=4, width=256, ffn=256, heads=2, kv_heads=1, keys=hybrid.keys | ssm)
    keys = latent.keys | {
        "attention.kv_lora_rank": 64,
        "attention.q_lora_rank": 32,
        "expert_feed_forward_length": 32,
        "attention.value_length": 64,
    }
    other = dataclasses.replace(latent, layers=2, width=256, ffn=256, heads=2, head_dim=128, experts=8, keys=keys)
    for i, shape in enumerate((small, other)):
        path = tmp_path / f"{i}.gguf"
        shapes.Maker(path, shape, "Q4_K_M", 0).write(tiny_model)
        with LLM(path, ctx=64) as llm:
            assert len(llm.generate("a", max_tokens=4, ignore_eos=True).token_ids) == 4
