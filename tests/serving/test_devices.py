"""Clients and operators see what computes a model: /health, the figures, the metrics, the identity."""

import re

import pytest

from woolly.llm.bit_identity import identity_of
from woolly.runtime.program import About

ASKED = {"model": "tiny", "prompt": "sheep", "max_tokens": 2, "temperature": 0}


def on_gpu(llm, backend="cuda", level="sm_90", device="NVIDIA Fake"):
    """Has a model of this process say that a GPU computes it."""
    program = llm.engine.program
    program.about = About(backend, level, 1, 1000, device=device, device_memory=80 * 10**9, device_bandwidth=3e12)
    return program


def test_device_of_a_model_is_reported_everywhere(client):
    client.app.state.health.set("ready")
    assert "device" not in client.get("/health").json()
    assert client.post("/v1/completions", json=ASKED).status_code == 200
    here = client.get("/health").json()["device"]["tiny"]
    assert re.fullmatch(r"CPU, \w+, 1 thread", here)
    stats = client.get("/api/v1/performance/stats").json()
    assert stats["device"] == {"name": here, "backend": "cpu"}
    assert f'woolly_device_info{{device="{here}",model="tiny"}} 1.0' in client.get("/metrics").text


def test_gpu_is_reported_with_memory_and_bandwidth(client):
    client.app.state.health.set("ready")
    assert client.post("/v1/completions", json=ASKED).status_code == 200
    llm = client.app.state.models.ready("tiny").llm
    program = on_gpu(llm)
    assert client.get("/health").json()["device"] == {"tiny": "NVIDIA Fake, sm_90"}
    stats = client.get("/api/v1/performance/stats").json()
    used = program.weight_stats().n_bytes + llm.engine.state.n_bytes + 1000
    assert stats["device"]["name"] == "NVIDIA Fake, sm_90"
    assert (stats["device"]["memory_bytes"], stats["device"]["memory_total_bytes"]) == (used, 80 * 10**9)
    assert stats["bandwidth"]["measured_gb_per_second"] == 3000.0
    metrics = client.get("/metrics").text
    assert f'woolly_device_memory_bytes{{device="NVIDIA Fake, sm_90",model="tiny"}} {float(used)}' in metrics
    # Each generation of GPUs has bits of its own.
    assert llm.driver.call(lambda engine: identity_of(engine.program, llm._loaded[0].file)).backend == "cuda sm_90"


@pytest.mark.parametrize(("backend", "level"), [("vulkan", "vulkan"), ("metal", "metal"), ("vulkan", "vulkan+avx2")])
def test_gpus_of_every_kind_are_reported_with_their_kind(client, backend, level):
    client.app.state.health.set("ready")
    assert client.post("/v1/completions", json=ASKED).status_code == 200
    on_gpu(client.app.state.models.ready("tiny").llm, backend, level, "Fake M9")
    assert client.get("/health").json()["device"] == {"tiny": f"Fake M9, {level}"}
    device = client.get("/api/v1/performance/stats").json()["device"]
    assert (device["name"], device["backend"]) == (f"Fake M9, {level}", backend)
    assert f'woolly_device_info{{device="Fake M9, {level}",model="tiny"}} 1.0' in client.get("/metrics").text


def test_with_keys_health_names_no_device(app_with):
    with app_with(api_key=("secret-key-1",)) as client:
        client.app.state.health.set("ready")
        assert client.post("/v1/completions", json=ASKED, headers={"x-api-key": "secret-key-1"}).status_code == 200
        assert "device" not in client.get("/health").json()
