"""Checks on every request: cross-origin pages, unknown hosts, and a stopping server."""

import pytest

from woolly.serving.dialects.ole import catalogue
from woolly.serving.lifecycle import app as app_module

invalid = app_module._invalid


@pytest.mark.parametrize("origin", ["https://evil.example", "http://[", "null"])
def test_cross_origin_page_cannot_post_to_a_server_without_keys(client, origin):
    headers = {"origin": origin, "content-type": "text/plain"}
    assert client.post("/api/v1/sessions", headers=headers).status_code == 403
    assert client.delete("/api/v1/sessions/x", headers=headers).status_code == 403
    assert client.get("/api/v1/sessions").json() == []


def test_own_and_configured_pages_may_post(app_with):
    with app_with(cors_origins=("https://ole.example",)) as client:
        for headers in ({}, {"origin": "http://testserver"}, {"origin": "https://ole.example"}):
            assert client.post("/api/v1/sessions", headers=headers).is_success


def test_valid_key_suffices(app_with):
    with app_with(api_key=("key",)) as client:
        headers = {"x-api-key": "key", "origin": "https://page.example"}
        assert client.post("/api/v1/sessions", headers=headers).is_success


@pytest.mark.parametrize("host", ["[", "[::1", "evil.example", ""])
def test_foreign_host_header_is_rejected(client, host):
    assert client.get("/v1/models", headers={"host": host}).status_code == 403


def test_too_long_path_reaches_no_model(client):
    reply = client.post("/api/v1/models/x/load", json={"path": "a" * 300 + ".gguf"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")


def test_stopping_server_reports_health_and_metrics_and_starts_nothing(app_with):
    with app_with() as client:
        client.app.state.health.set("draining", "the server is about to stop")
        token = {"user_id": "ole", "api_key": ""}
        assert client.get("/api/v1/health").json()["status"] == "draining"
        assert client.get("/metrics").status_code == 200
        assert client.post("/api/v1/auth/token", json=token).status_code == 200
        for path in ("/api/v1/sessions", "/api/v1/models/tiny/load", "/tokenize"):
            reply = client.post(path, json={})
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "server_stopping")
            assert reply.headers["retry-after"]


def test_users_of_one_key_share_its_rate(app_with):
    with app_with(api_key=("key",), rate_limit=4) as client:
        tokens = [
            client.post("/api/v1/auth/token", json={"user_id": user, "api_key": "key"}).json()["token"]
            for user in ("ada", "ole")
        ]
        statuses = [client.get("/v1/models", headers={"x-api-key": tokens[i % 2]}).status_code for i in range(5)]
    assert statuses == [200] * 4 + [429]


@pytest.mark.parametrize(
    ("path", "field"),
    [("/v1/completions", "prompt"), ("/completion", "prompt"), ("/detokenize", "tokens"), ("/completion", "stop"),
     ("/v1/chat/completions", "messages"), ("/v1/chat/completions", "tools"), ("/completion", "logit_bias")],
)  # fmt: skip
def test_only_the_first_invalid_list_item_is_checked(client, monkeypatch, path, field):
    reported = []
    monkeypatch.setattr(app_module, "_invalid", lambda error: reported.append(error.errors()) or invalid(error))
    fields = {"prompt": "x", field: [None] * 50_000}
    reply = client.post(path, json=fields if path == "/completion" else {field: fields[field]})
    assert reply.status_code == 400
    assert sum(field in one["loc"] for one in reported[0]) in range(1, 20)


def test_catalogue_offers_what_the_key_may_download(app_with, tiny_folder, monkeypatch):
    monkeypatch.setattr(catalogue, "models_folder", lambda: tiny_folder)
    with app_with(api_key=("one",), admin_key=("two",), allow_pull=True) as client:
        replies = (client.get("/api/v1/catalogue", headers={"x-api-key": key}).json() for key in ("one", "two"))
        assert [reply["allowed"] for reply in replies] == [False, True]
