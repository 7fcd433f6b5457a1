"""Requests that an administrator looks at afterwards."""

import pytest

from woolly.serving.observability.request_history import RequestHistory, redacted

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "a secret"}], "max_tokens": 2, "frequency": 1}
ADMIN, OTHER = {"x-api-key": "the-admin"}, {"x-api-key": "another"}


@pytest.mark.parametrize("with_texts", [False, True])
def test_request_texts_are_kept_only_if_enabled(app_with, with_texts):
    keys = {"api_key": ("another",), "admin_key": ("the-admin",)}
    with app_with(**keys, keep_requests=2, keep_texts=with_texts, ctx_size=64) as client:
        for number in range(3):
            head = {**OTHER, "x-request-id": f"mine-{number}"}
            assert client.post("/v1/chat/completions", json=BODY, headers=head).status_code == 200
        refused = client.post("/v1/chat/completions", json={**BODY, "n": 0}, headers={**OTHER, "x-request-id": "bad"})
        assert refused.status_code == 400
        assert client.get("/api/v1/requests", headers=OTHER).status_code == 403
        listed = client.get("/api/v1/requests", headers=ADMIN).json()["requests"]
        assert [(one["id"], one["status"]) for one in listed] == [("bad", 400), ("mine-2", 200)]
        assert "body" not in listed[0] and listed[0]["reason"].startswith("invalid_request")
        one = client.get("/api/v1/requests/mine-2", headers=ADMIN).json()
        assert one["answers"][0]["model"] == "tiny" and one["answers"][0]["completion_tokens"] <= 2
        assert one["body"]["max_tokens"] == 2 and one["body"]["model"] == "tiny" and one["ignored"]
        assert one["body"]["messages"][0]["content"] == ("a secret" if with_texts else "(8 characters)")
        assert client.get("/api/v1/requests/mine-0", headers=ADMIN).status_code == 404


def test_nothing_is_kept_by_default(client):
    reply = client.get("/api/v1/requests")
    assert reply.status_code == 501 and "--keep-requests" in reply.text
    assert not RequestHistory(0, with_texts=True).is_on


def test_kept_body_is_bounded():
    large = {"input": "x" * 10**6, "model": "y" * 10**6, "rows": [[["z"] * 1000] * 1000] * 1000}
    for with_texts in (False, True):
        assert len(repr(redacted(large, with_texts=with_texts))) < 200_000
    assert redacted({"role": "user", "content": "Hi", "n": 1, "ok": None}, with_texts=False) == {
        "role": "user", "content": "(2 characters)", "n": 1, "ok": None,
    }  # fmt: skip


def test_only_api_field_names_and_no_token_ids_are_kept():
    said = {"model": "patient Anna", "role": "patient", "content": [{"type": "secret"}], "ids": [4, 5]}
    call = {"type": "tool_use", "input": said}
    body = {
        "model": "tiny", "prompt": [[1, 2, 3], [4, "a"]], "stop": ["Anna"], "flags": [True], "response_format": said,
        "messages": [{"role": "user", "content": [call]}], "tools": [{"type": "function", "function": said}],
    }  # fmt: skip
    kept = redacted(body, with_texts=False)
    hidden = {
        "model": "(12 characters)", "role": "(7 characters)", "content": [{"type": "(6 characters)"}],
        "ids": "(2 values)",
    }  # fmt: skip
    assert kept == {
        "model": "tiny", "prompt": ["(3 values)", "(2 values)"], "stop": ["(4 characters)"], "flags": [True],
        "response_format": hidden, "tools": [{"type": "function", "function": hidden}],
        "messages": [{"role": "user", "content": [{"type": "tool_use", "input": hidden}]}],
    }  # fmt: skip
    assert redacted(body, with_texts=True) == body
