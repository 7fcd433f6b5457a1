"""Limits of a key, by a clock of the test's own."""

import pytest

from woolly.serving.accounts.account import Account, KeyLimits
from woolly.serving.accounts.quotas import Quotas
from woolly.serving.errors import ApiError

DAY = 86_400
NOON = 20_000 * DAY + DAY // 2


class Clock:
    def __init__(self):
        self.now = float(NOON)

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def quotas(clock):
    return Quotas(clock)


def account(**limits):
    return Account("anna", "name:anna", limits=KeyLimits(**limits))


def refused(quotas, who):
    with pytest.raises(ApiError) as caught:
        quotas.admit(who)
    assert (caught.value.status, caught.value.code) == (429, "rate_limit_exceeded")
    return caught.value


def test_requests_per_minute_are_reset_with_the_next(quotas, clock):
    who = account(requests_per_minute=2)
    clock.now += 15
    quotas.admit(who)
    quotas.admit(who)
    assert refused(quotas, who).retry_after == 45
    clock.now += 45
    quotas.admit(who)


def test_tokens_per_day_are_reset_at_midnight(quotas, clock):
    who = account(tokens_per_day=100, requests_per_minute=1000)
    quotas.admit(who)
    quotas.charge(who, 99)
    quotas.admit(who)  # one token is left: this answer may be as long as it likes
    quotas.charge(who, 500)
    error = refused(quotas, who)
    assert "has reached its limit of 100 tokens per day; retry after 2024-10-05T00:00:00Z" in error.message
    assert error.retry_after == DAY // 2 and error.headers["Retry-After"] == str(DAY // 2)
    clock.now += DAY // 2
    quotas.admit(who)


def test_later_of_two_reset_times_is_reported(quotas):
    who = account(requests_per_minute=1, requests_per_day=1)
    quotas.admit(who)
    assert refused(quotas, who).retry_after == DAY // 2


def test_rejected_request_is_not_counted(quotas, clock):
    who = account(requests_per_minute=1, requests_per_day=2)
    quotas.admit(who)
    refused(quotas, who)
    clock.now += 60
    quotas.admit(who)


def test_headers_show_the_nearest_limit(quotas):
    who = account(requests_per_minute=10, requests_per_day=3, tokens_per_day=100)
    quotas.admit(who)
    quotas.charge(who, 30)
    assert dict(quotas.headers(who)) == {
        b"x-ratelimit-limit-requests": b"3", b"x-ratelimit-remaining-requests": b"2",
        b"x-ratelimit-reset-requests": b"12h0m0s", b"x-ratelimit-limit-tokens": b"100",
        b"x-ratelimit-remaining-tokens": b"70", b"x-ratelimit-reset-tokens": b"12h0m0s",
    }  # fmt: skip
    assert list(quotas.headers(account())) == []


def test_counts_of_an_earlier_process_today_are_continued(quotas):
    quotas.restore("anna", 3, 70)
    refused(quotas, account(requests_per_day=3))
    quotas.admit(account(requests_per_day=4, requests_per_minute=1))
    assert dict(quotas.headers(account(tokens_per_day=100)))[b"x-ratelimit-remaining-tokens"] == b"30"


def test_model_names_may_have_patterns():
    who = Account("anna", "name:anna", models=("smollm2", "Team-*"))
    assert who.allows(["SmolLM2"]) and who.allows(["x", "team-fast"])
    assert not who.allows(["smollm2:360m", "steam-fast"]) and account().allows(["any"])
