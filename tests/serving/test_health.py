"""Health, metrics and the log of a real server."""

import re
from datetime import datetime

import pytest


@pytest.mark.parametrize("path", ["/health", "/v1/health", "/api/v1/health"])
def test_responding_server_is_ok(server, path):
    with server.client() as client:
        reply = client.get(path)
    assert reply.status_code == 200
    body = reply.json()
    assert (body["status"], body["service"]) == ("ok", "woolly-server")
    assert datetime.fromisoformat(body["timestamp"].replace("Z", "+00:00")).tzinfo is not None


@pytest.mark.parametrize("prefix", ["", "/api/v1"])
def test_ready_reports_its_checks_and_live_the_uptime(server, prefix):
    with server.client() as client:
        ready = client.get(f"{prefix}/health/ready").json()
        live = client.get(f"{prefix}/health/live").json()
    assert ready["status"] == "ready"
    assert {check["status"] for check in ready["checks"].values()} == {"ok"}
    assert f"{server.name} ready" in ready["checks"]["models"]["message"]
    assert live["status"] == "alive" and live["uptime_seconds"] > 0


@pytest.mark.parametrize("prefix", ["", "/api/v1"])
def test_with_keys_ready_names_no_model_and_no_number(app_with, prefix):
    with app_with(api_key=("secret-key-1",)) as client:
        asked = {"prompt": "hi", "max_tokens": 1}
        client.app.state.health.set("ready")
        assert client.post("/v1/completions", json=asked, headers={"x-api-key": "secret-key-1"}).status_code == 200
        reply = client.get(f"{prefix}/health/ready")
    checks = reply.json()["checks"]
    assert reply.status_code == 200 and checks["models"]["status"] == checks["queue"]["status"] == "ok"
    assert "tiny" not in reply.text
    assert not re.search("[0-9]", checks["models"]["message"] + checks["queue"]["message"])


def metric(text, name):
    found = re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
    return sum(map(float, found))


def test_metrics_count_served_requests(server):
    body = {"prompt": "One two three", "max_tokens": 5, "temperature": 0}
    with server.client() as client:
        before = client.get("/metrics").text
        usage = client.post("/v1/completions", json=body).json()["usage"]
        reply = client.get("/api/v1/metrics")
    after = reply.text
    assert reply.headers["content-type"].startswith("text/plain")
    counted = {"woolly_prompt_tokens_total": "prompt_tokens", "woolly_predicted_tokens_total": "completion_tokens"}
    for name, tokens in counted.items():
        assert metric(after, name) - metric(before, name) >= usage[tokens]
    assert metric(after, "woolly_first_token_seconds_count") > 0
    assert metric(after, "woolly_models_loaded") == 1


def test_every_reply_carries_the_request_id_of_its_log_line(server):
    with server.client() as client:
        mine = client.get("/v1/models", headers={"x-request-id": "my-id.7"}).headers["x-request-id"]
        other = client.get("/nope", headers={"x-request-id": "not sound;" * 9}).headers["x-request-id"]
    assert mine == "my-id.7"
    assert re.fullmatch("[0-9a-f]{16}", other)
    log = server.log_with("my-id.7", other)
    assert "my-id.7" in log and other in log


def test_log_has_no_prompt_and_no_answer(server):
    with server.client() as client:
        body = {"prompt": "The zebra quagga wandered", "max_tokens": 8, "temperature": 0}
        reply = client.post("/v1/completions", json=body, headers={"x-request-id": "zebra-1"})
        text = reply.json()["choices"][0]["text"]
    log = server.log_with("zebra-1 request")
    assert "zebra-1 request" in log and "quagga" not in log
    assert len(text) > 8 and text not in log


def test_no_origin_is_allowed_unless_configured(server):
    with server.client() as client:
        reply = client.get("/v1/models", headers={"origin": "https://evil.example"})
        assert "access-control-allow-origin" not in reply.headers
        preflight = {"origin": "https://evil.example", "access-control-request-method": "POST"}
        assert "access-control-allow-origin" not in client.options("/v1/completions", headers=preflight).headers


def test_openapi_describes_errors_as_they_are_sent(server):
    with server.client() as client:
        schema = client.get("/openapi.json").json()
        docs = client.get("/docs")
    assert docs.status_code == 200
    # All routes and their fields, and nothing that a browser would fetch from elsewhere.
    assert all(f"{path}</code>" in docs.text for path in schema["paths"])
    assert "<code>top_n_sigma</code>" in docs.text
    assert not re.search(r"<link|src=|href=.?http", docs.text)
    assert "HTTPValidationError" not in str(schema)
    assert {"400", "429", "503"} <= set(schema["paths"]["/v1/completions"]["post"]["responses"])
