"""Allowed origins: local pages only, if the server listens on localhost only."""

import pytest

from woolly.serving import Settings
from woolly.serving.gate.origins import AllowedOrigins

ASK = {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}


@pytest.mark.parametrize(
    "origin", ["http://localhost:3000", "http://127.0.0.1:5173", "http://localhost", "http://[::1]:1"]
)
def test_local_pages_may_call_a_local_server(client, origin):
    allowed = client.options("/v1/completions", headers={"origin": origin, **ASK})
    assert allowed.status_code == 200 and allowed.headers["access-control-allow-origin"] == origin
    reply = client.post("/tokenize", json={"content": "a"}, headers={"origin": origin})
    assert reply.status_code == 200 and reply.headers["access-control-allow-origin"] == origin
    assert "x-woolly-ignored" in reply.headers["access-control-expose-headers"]


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "http://localhost.evil.example", "http://127.0.0.1.evil.example:80", "null"]
)
def test_other_pages_may_not(client, origin):
    assert "access-control-allow-origin" not in client.options("/v1/models", headers={"origin": origin, **ASK}).headers
    assert client.post("/tokenize", json={"content": "a"}, headers={"origin": origin}).status_code == 403


def test_list_replaces_the_default_and_a_public_server_has_none():
    assert not AllowedOrigins(Settings(cors_origins=("https://a.example",))).allows("http://localhost:3000")
    assert AllowedOrigins(Settings(cors_origins=("https://a.example",))).allows("https://a.example")
    assert not AllowedOrigins(Settings(host="0.0.0.0")).allows("http://localhost:3000")
    assert AllowedOrigins(Settings(host="0.0.0.0", cors_origins=("*",))).allows("http://localhost:3000")


def test_hosts_other_than_this_machine_are_rejected(client):
    for host, status in (("", 403), ("evil.example", 403), ("localhost:8080", 200)):
        assert client.get("/v1/models", headers={"host": host}).status_code == status
