"""Metrics by model, under two sets of names, and the dashboard that shows them."""

import json
import re
from pathlib import Path

import pytest

from woolly.serving.observability.metrics import Stats

DASHBOARD = Path(__file__).parents[3] / "deploy" / "grafana.json"
USAGE = {"prompt_tokens": 40, "completion_tokens": 5, "total_tokens": 45, "cached_tokens": 32}
TIMINGS = {
    "prompt_ms": 90_000.0, "predicted_ms": 2000.0, "prompt_per_second": 1.0, "predicted_per_second": 2.0,
    "predicted_per_token_ms": 500.0,
}  # fmt: skip


def asked(client, **more):
    body = {"model": "tiny", "prompt": "one two", "max_tokens": 3, "temperature": 0, **more}
    return client.post("/v1/completions", json=body)


def test_metrics_are_per_model_with_buckets_up_to_an_hour():
    stats = Stats(has_vllm_names=True)
    stats.count_answer("a", ["stop"], USAGE, TIMINGS, 0.25, 3)
    text = stats.text().decode()
    for line in (
        'woolly_prompt_tokens_total{model="a"} 40.0',
        'woolly_prompt_tokens_cached_total{model="a"} 32.0',
        'woolly_answers_total{model="a",reason="stop"} 1.0',
        'woolly_first_token_seconds_bucket{le="60.0",model="a"} 0.0',
        'woolly_first_token_seconds_bucket{le="120.0",model="a"} 1.0',
        'woolly_answer_seconds_bucket{le="3600.0",model="a"} 1.0',
        'woolly_token_seconds_bucket{le="0.5",model="a"} 1.0',
        'vllm:time_to_first_token_seconds_count{model_name="a"} 1.0',
        'vllm:prefix_cache_hits_total{model_name="a"} 32.0',
        'vllm:prefix_cache_queries_total{model_name="a"} 40.0',
        'vllm:request_success_total{finished_reason="stop",model_name="a"} 1.0',
        'vllm:inter_token_latency_seconds_sum{model_name="a"} 0.5',
        'vllm:request_generation_tokens_bucket{le="5.0",model_name="a"} 1.0',
        'vllm:request_queue_time_seconds_sum{model_name="a"} 0.25',
        'vllm:request_max_num_generation_tokens_sum{model_name="a"} 3.0',
    ):
        assert line in text, line
    assert "_created" not in text and "vllm:" not in Stats().text().decode()


@pytest.fixture(scope="module")
def metrics(tiny_folder, tmp_path_factory):
    """The metrics of a server that has answered."""
    from fastapi.testclient import TestClient

    from woolly.serving import Settings, create_app

    sessions = tmp_path_factory.mktemp("metrics") / "sessions.db"
    settings = Settings(models_dir=tiny_folder, threads=1, metrics_names="vllm", sessions_file=sessions, ctx_size=64)
    with TestClient(create_app(settings)) as client:
        assert asked(client).status_code == 200
        assert asked(client, model=5).status_code == 400
        return client.get("/metrics").text


def test_cache_is_shown_per_model(metrics):
    pages = float(re.search(r'^woolly_kv_cache_pages\{model="tiny"\} (\S+)$', metrics, re.MULTILINE)[1])
    used = float(re.search(r'^woolly_kv_cache_pages_used\{model="tiny"\} (\S+)$', metrics, re.MULTILINE)[1])
    assert 0 <= used <= pages and pages > 0
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert f'vllm:{name}{{model_name="tiny"}}' in metrics


def test_dashboard_queries_existing_metrics(metrics):
    board = json.loads(DASHBOARD.read_text())
    known = set(re.findall(r"^# TYPE (\S+)", metrics, re.MULTILINE))
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries += [one["query"] for one in board["templating"]["list"]]
    asked = {name for query in queries for name in re.findall(r"\bwoolly_\w+", query)}
    assert len(asked) > 12
    for name in asked:
        assert name in known or name.removesuffix("_bucket") in known, name
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)


def test_vllm_dashboard_queries_find_data(metrics):
    """The series of its example dashboard, older names included; none swaps requests out any more."""
    histograms = (
        "e2e_request_latency_seconds time_to_first_token_seconds inter_token_latency_seconds"
        " time_per_output_token_seconds request_prompt_tokens request_generation_tokens request_queue_time_seconds"
        " request_prefill_time_seconds request_decode_time_seconds request_max_num_generation_tokens"
    )
    series = [f"{name}_{end}" for name in histograms.split() for end in ("sum", "count")]
    series += ["prompt_tokens_total", "generation_tokens_total", "num_requests_running", "num_requests_waiting"]
    series += ["kv_cache_usage_perc", "gpu_cache_usage_perc"]
    for name in series:
        assert re.search(rf'^vllm:{name}\{{model_name="tiny"\}} \S+$', metrics, re.MULTILINE), name
    assert 'vllm:request_success_total{finished_reason="length",model_name="tiny"} 1.0' in metrics
    assert 'vllm:request_generation_tokens_bucket{le="5.0",model_name="tiny"} 1.0' in metrics
