"""Errors of /v1/messages have Anthropic's shape, in replies and in streams."""

import json

import pytest

from woolly.serving.dialects.anthropic import DIALECT
from woolly.serving.errors import ApiError

BODY = {"model": "tiny", "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (422, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
    ],
)
def test_status_determines_the_type(status, kind):
    error = DIALECT.error(ApiError(status, "code", "a sentence"))
    assert error["type"] == "error" and error["error"] == {"type": kind, "message": "a sentence"}


def test_stream_error_is_a_named_event():
    name, data = DIALECT.error_frame(ApiError(503, "code", "stopped")).decode().strip().split("\n")
    assert name == "event: error" and json.loads(data.removeprefix("data: "))["error"]["message"] == "stopped"


def test_gate_errors_have_the_same_format(app_with):
    with app_with(api_key=("secret",)) as client:
        reply = client.post("/v1/messages", json=BODY)
        assert reply.status_code == 401 and reply.json()["error"]["type"] == "authentication_error"
        assert reply.json()["request_id"] == reply.headers["x-request-id"]
        assert client.post("/v1/messages", json=BODY, headers={"x-api-key": "secret"}).status_code == 200
    with app_with() as client:
        assert client.post("/v1/messages", content=b"{").json()["type"] == "error"
        assert "max_tokens" in client.post("/v1/messages", json={**BODY, "max_tokens": None}).json()["error"]["message"]


def test_body_limit_replaces_the_server_limit(app_with):
    with app_with(n_predict=3, ctx_size=64) as client:
        ask = {**BODY, "messages": [{"role": "user", "content": "x"}], "temperature": 0}
        for limit in (2, 5):
            reply = client.post("/v1/messages", json={**ask, "max_tokens": limit}).json()
            assert (reply["stop_reason"], reply["usage"]["output_tokens"]) == ("max_tokens", limit)
        reply = client.post("/v1/messages", json={**ask, "max_tokens": 5000}).json()
        assert reply["stop_reason"] == "model_context_window_exceeded"


def test_unknown_name_is_rejected_if_several_models_are_served(app_with, tiny_folder, tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.gguf").write_bytes((tiny_folder / "tiny.gguf").read_bytes())
    with app_with(models_dir=tmp_path, strict_models=False) as client:
        reply = client.post("/v1/messages", json={**BODY, "model": "claude-x"})
        assert reply.status_code == 404 and reply.json()["error"]["type"] == "not_found_error"
    with app_with(models_dir=tmp_path, model=str(tmp_path / "two.gguf"), strict_models=False) as client:
        assert client.post("/v1/messages", json={**BODY, "model": "claude-x"}).json()["model"] == "two"
