"""Routes that other servers have: whoever asks for one learns what this one has instead."""

import re

import pytest

from woolly.serving.dialects.unsupported_routes import ROUTES, no_such_route, unsupported_reason

HI = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "input": "hi"}

ABSENT = [
    ("POST", "/v1/audio/speech", "not audio", ""),
    ("POST", "/v2/chat", "only Cohere's embeddings and reranking are supported", "/v1/chat/completions"),
    ("POST", "/v1/v1/chat/completions", "single /v1", "/v1/chat/completions"),
    ("GET", "/v1/v1/models", "end with a single /v1", "/v1/models"),
]


@pytest.mark.parametrize(("method", "path", "says", "instead"), ABSENT, ids=[row[1] for row in ABSENT])
def test_route_of_another_server_is_a_404_that_names_the_replacement(client, method, path, says, instead):
    reply = client.request(method, path, json=HI if method == "POST" else None)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (404, "not_supported"), reply.text
    assert says in error["message"] and instead in error["message"]
    assert error["message"].startswith(f"{method} {path}: ")


@pytest.mark.parametrize(("method", "path", "says", "instead"), ABSENT, ids=[row[1] for row in ABSENT])
def test_suggested_routes_exist(client, method, path, says, instead):
    paths = client.get("/openapi.json").json()["paths"]
    for verb, route in re.findall(r"(GET|POST) (/[\w/{}]+)", unsupported_reason(path)):
        named = re.sub(r"{\w+}", "{}", route)
        there = {re.sub(r"{\w+}", "{}", one): operations for one, operations in paths.items()}
        assert verb.lower() in there.get(named, {}), route


def test_unknown_route_says_where_to_look(client):
    reply = client.get("/v1/nothing")
    assert reply.status_code == 404 and reply.json()["error"]["code"] == "not_found"
    assert "/docs" in reply.json()["error"]["message"]


def test_misspelt_route_error_suggests_the_right_one(client):
    reply = client.post("/v1/chat/completion", json=HI)
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")
    says = "POST /v1/chat/completion: unknown route; did you mean /v1/chat/completions?"
    assert reply.json()["error"]["message"] == says
    assert no_such_route("/v1/model/").endswith("did you mean /v1/models?")
    assert set(ROUTES) <= set(client.get("/openapi.json").json()["paths"])


def test_wrong_method_error_names_the_right_one(client):
    reply = client.get("/v1/chat/completions")
    assert (reply.status_code, reply.headers["allow"]) == (405, "POST")
    assert reply.json()["error"]["message"] == "GET /v1/chat/completions: method not allowed; send POST"
    assert client.patch("/").json()["error"]["message"].endswith("method not allowed; send GET or HEAD")


def test_existing_route_that_finds_nothing_keeps_its_own_error(client):
    reply = client.get("/v1/models/none")
    assert reply.json()["error"]["code"] == "model_not_found"
