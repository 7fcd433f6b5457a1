"""Figures are measured: they count what was done, and every kind of benchmark runs."""

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from tests.cases.moe import MOES
from tests.cases.tiny import TINY, write_tiny
from woolly.measure.live_benchmark import TEST_TYPES, _Subject
from woolly.plan import OPS, Tracer

ASKED = {"prompt": "hi" * 40, "max_tokens": 5, "ignore_eos": True}


def test_stats_count_requests_and_load_nothing(client):
    before = client.get("/api/v1/performance/stats").json()
    assert before["model_type"] is None and before["average_tokens_per_second"] == 0
    assert client.app.state.models.loaded_models == ()
    for _ in range(3):
        client.post("/api/v1/inference/complete", json=ASKED)
    stats = client.get("/api/v1/performance/stats").json()
    assert stats["answers"] == 3 and stats["completion_tokens"] == 15 and stats["prompt_tokens"] == 240
    assert stats["prefix_cache"]["hit_tokens"] == 128 and stats["cache_hit_rate"] == pytest.approx(128 / 240)
    assert stats["kv_cache"]["pages_used"] == stats["running"] == stats["waiting"] == 0
    assert stats["weights"]["misses"] == 0 < stats["weights"]["hits"]
    assert stats["first_token_ms"]["p50"] > 0 and stats["bandwidth"]["achieved_gb_per_second"] > 0


@pytest.mark.parametrize("test_type", TEST_TYPES)
def test_every_kind_of_benchmark_measures(client, test_type):
    reply = client.post("/api/v1/performance/benchmark", json={"test_type": test_type, "iterations": 2})
    assert reply.status_code == 200, reply.text
    measured = reply.json()
    assert measured["test_type"] == test_type and measured["iterations"] == 2
    assert measured["total_time_ms"] > 0 and measured["speedup_vs_baseline"] > 0 and measured["tokens_per_second"] > 0


@pytest.mark.parametrize("fields", [{}, {"test_type": "sorting"}, {"test_type": "decode", "iterations": 0}])
def test_invalid_benchmark_is_rejected(client, fields):
    reply = client.post("/api/v1/performance/benchmark", json=fields)
    assert reply.status_code == 400 and reply.json()["error"]["code"] == "invalid_request"


def test_one_benchmark_runs_at_a_time(client):
    lock = client.app.state.benchmarking
    client.portal.call(lock.acquire)
    reply = client.post("/api/v1/performance/benchmark", json={"test_type": "decode"})
    assert reply.status_code == 429 and int(reply.headers["retry-after"]) > 0
    client.portal.call(asyncio.to_thread, lock.release)


def test_flops_include_experts_but_not_attention():
    steps = [
        SimpleNamespace(op=op, kind=OPS[op], matrices=op in ("linears", "moe"))
        for op in ("embed", "linears", "attend", "moe", "output_rows")
    ]
    program = SimpleNamespace(
        max_rows=32,
        plan=SimpleNamespace(n_tokens=100, width=100, slots={}),
        running_plan=SimpleNamespace(steps=steps),
        run=lambda *_: None,
        timed=lambda: nullcontext([1, 20, 300, 4000, 50000]),
    )
    subject = _Subject(program, None, None, lambda action: action())
    assert subject.seconds("matmul") == pytest.approx(4020e-9)
    assert subject.seconds("attention") == pytest.approx(300e-9)


def test_only_the_used_experts_count_as_read():
    name, experts = next((name, one) for name, one in MOES.items() if one.n_used < one.n_experts)
    tensors = experts.make(np.random.default_rng(1), 4)
    tracer = Tracer("test", tensors)
    tracer.output(tracer.output_rows(experts.build(tracer)))
    (step,) = (step for step in tracer.plan().steps if step.op == "moe")
    whole = {weight.name: tensors[weight.name].data.nbytes for weight in step.weights}
    shared = sum(n for key, n in whole.items() if "router" in key)
    own = sum(whole.values()) - shared
    assert step.row_bytes() == shared + round(own * experts.n_used / experts.n_experts), name


def test_statistics_are_those_of_the_requested_or_last_used_model(app_with, tmp_path):
    for name in ("one", "two"):
        write_tiny(TINY["llama"], tmp_path / f"{name}.gguf")
    with app_with(models_dir=tmp_path, models_max=2) as client:

        def figures(**params):
            return client.get("/api/v1/performance/stats", params=params).json()

        assert figures()["model"] is None
        for name in ("one", "two", "one"):
            client.post("/v1/completions", json={"model": name, "prompt": "a", "max_tokens": 4, "ignore_eos": True})
            assert figures()["model"] == name
            assert figures()["predicted_tokens_per_second"] > 0
        assert figures(model="two")["model"] == "two"
        one, two = (figures(model=name)["predicted_tokens_per_second"] for name in ("one", "two"))
        assert one != two
        cache = figures(model="two")["kv_cache"]
        assert cache["tokens"] == cache["pages"] * cache["tokens_per_page"]
        assert cache["contexts"] == cache["tokens"] / 512
        assert figures(model="nobody")["model"] is None
