"""Limits on the size and duration of a request body."""

import asyncio

import pytest

from tests.cases.clock import run_skipping
from woolly.serving.errors import ApiError
from woolly.serving.gate.request_body import BodyBudget, read_body


def messages(*parts, delay=0.0):
    async def receive():
        await asyncio.sleep(delay)
        body, *rest = parts_left
        parts_left[:] = rest
        return {"type": "http.request", "body": body, "more_body": bool(rest)}

    parts_left = list(parts)
    return receive


def test_too_large_or_too_slow_body_is_rejected():
    assert run_skipping(read_body(messages(b"ab", b"cd"), None, 4, 1)) == b"abcd"
    for declared, receive, status in (
        (5, messages(b""), 413),
        (None, messages(b"abc", b"de"), 413),
        (None, messages(b"a", b"b", delay=10), 408),
    ):
        with pytest.raises(ApiError) as caught:
            run_skipping(read_body(receive, declared, 4, 15))
        assert caught.value.status == status


def test_bodies_of_all_requests_share_one_budget():
    budget = BodyBudget(10)
    with budget.share() as first, budget.share() as second:
        assert run_skipping(read_body(messages(b"abc", b"def"), None, 100, 1, first)) == b"abcdef"
        second(4)
        with pytest.raises(ApiError) as caught:
            run_skipping(read_body(messages(b"x"), None, 100, 1, second))
        assert (caught.value.status, caught.value.code, caught.value.headers["Retry-After"]) == (
            503,
            "too_many_bytes",
            "1",
        )
        assert budget.n_held == 10
    assert budget.n_held == 0


def test_body_beyond_the_budget_is_a_503_and_its_bytes_are_released(app_with):
    with app_with(max_body="4KB", max_bodies="4KB") as client:
        budget, body = client.app.state.bodies, {"content": "x" * 3000}
        budget.n_held = 1500
        refused = client.post("/tokenize", json=body)
        assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "too_many_bytes" and budget.n_held == 1500
        budget.n_held = 0
        assert client.post("/tokenize", json=body).status_code == 200
        assert client.post("/tokenize", json={"content": 5}).status_code == 400
        assert budget.n_held == 0
