"""Rate limits of clients."""

import pytest

from woolly.serving.errors import ApiError
from woolly.serving.gate.rate_limits import KeyGuessLimiter, RateLimiter


def test_client_gets_its_rate_and_then_waits_as_announced():
    now = 0.0
    limiter = RateLimiter(60, lambda: now)
    for _ in range(60):
        limiter.count("a")
    with pytest.raises(ApiError) as caught:
        limiter.count("a")
    assert (caught.value.status, caught.value.headers["Retry-After"]) == (429, "1")
    limiter.count("b")  # another client is not affected
    now += 1.0
    limiter.count("a")
    with pytest.raises(ApiError):
        limiter.count("a")


def test_at_most_ten_thousand_clients_are_tracked():
    limiter = RateLimiter(1, lambda: 0.0)
    for i in range(20_000):
        limiter.count(f"client {i}")
    assert len(limiter._buckets) == 10_000


def test_address_that_guesses_keys_waits_and_its_neighbours_do_not():
    now = 0.0
    key_guesses = KeyGuessLimiter(lambda: now)
    key_guesses.record_success("address", "a neighbour's key")
    for _ in range(20):
        key_guesses.record_failure("address")
    with pytest.raises(ApiError) as caught:
        key_guesses.record_failure("address")
    assert caught.value.status == 429 and "wrong key" in caught.value.message
    with pytest.raises(ApiError):
        key_guesses.record_success("address", "the key that was guessed at last")
    key_guesses.record_success("address", "a neighbour's key")
    key_guesses.record_success("another address", "the key that was guessed at last")
    now += 60.0
    key_guesses.record_success("address", "the key that was guessed at last")


def test_wrong_keys_are_slowed_down_without_a_rate_limit(app_with):
    with app_with(api_key=("right",)) as client:
        replies = [client.get("/v1/models", headers={"x-api-key": f"guess {i}"}).status_code for i in range(25)]
        assert replies == [401] * 20 + [429] * 5
        body = {"user_id": "a", "api_key": "another guess"}
        assert client.post("/api/v1/auth/token", json=body).status_code == 429
