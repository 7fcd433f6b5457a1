"""Limits: rates, bodies, JSON, and the queue."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from woolly.serving.admission import Admission
from woolly.serving.errors import ApiError, error_body, of_exception
from woolly.serving.limits import MAX_DEPTH, MAX_KEYS, MAX_VALUES, BodyBudget, RateLimiter, check_json, read_body


def test_a_client_gets_its_rate_and_then_waits_as_long_as_it_is_told():
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


def test_ten_thousand_clients_at_most_are_remembered():
    limiter = RateLimiter(1, lambda: 0.0)
    for i in range(20_000):
        limiter.count(f"client {i}")
    assert len(limiter._buckets) == 10_000


def messages(*parts, delay=0.0):
    async def receive():
        await asyncio.sleep(delay)
        body, *rest = parts_left
        parts_left[:] = rest
        return {"type": "http.request", "body": body, "more_body": bool(rest)}

    parts_left = list(parts)
    return receive


def test_a_body_is_read_whole_and_refused_when_it_is_too_large_or_too_slow():
    assert asyncio.run(read_body(messages(b"ab", b"cd"), None, 4, 1)) == b"abcd"
    for declared, receive, status in (
        (5, messages(b""), 413),
        (None, messages(b"abc", b"de"), 413),
        (None, messages(b"a", b"b", delay=0.1), 408),
    ):
        with pytest.raises(ApiError) as caught:
            asyncio.run(read_body(receive, declared, 4, 0.15))
        assert caught.value.status == status


def check(body):
    asyncio.run(check_json(body))


def keys(n):
    return json.dumps(dict.fromkeys(map(str, range(n)))).encode()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",))),
    lambda children: st.lists(children) | st.dictionaries(st.text(st.characters(exclude_categories=("Cs",))), children),
)  # fmt: skip


@given(json_values, st.booleans())
def test_all_that_is_json_passes(value, ascii_only):
    check(json.dumps(value, ensure_ascii=ascii_only).encode())


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"{]", b"nul", b'{"a": 1,}', b"\xff\xfe", b'"\xc3\x28"', b"\xef\xbb\xbf{}", b"NaN",
        b'{"a": Infinity}',
        b'{"a": -Infinity}', b"1e999", b"1" * 5000, b'"\\ud800"', b'{"\\udfff": 1}',
        b"[" * 100_000, b'{"a":' * 2000 + b"1" + b"}" * 2000, b"[" * 200 + b"]" * 200,
    ],
)  # fmt: skip
def test_what_is_no_honest_json_is_a_400(body):
    with pytest.raises(ApiError) as caught:
        check(body)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


@pytest.mark.parametrize(
    ("most", "more", "named"),
    [
        (b"[" + b"0," * (MAX_VALUES - 2) + b"0]", b"[" + b"0," * (MAX_VALUES - 1) + b"0]", "200000 values"),
        (b'["' + b",:[{" * MAX_VALUES + b'"]', b"[" + b"[0,0]," * (MAX_VALUES // 3 + 1) + b"0]", "200000 values"),
        (keys(MAX_KEYS), keys(MAX_KEYS + 1), "10000 keys"),
    ],
)
def test_values_and_keys_are_counted_and_what_lies_in_texts_is_not(most, more, named):
    check(most)
    with pytest.raises(ApiError, match=named) as caught:
        check(more)
    assert (caught.value.status, caught.value.code) == (413, "body_too_large")


def test_depth_is_counted_on_every_branch():
    check(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    with pytest.raises(ApiError, match="deeper"):
        check(b"[1, {}, " + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"]")


def test_a_full_queue_answers_at_once_and_says_when():
    admission = Admission(2, 1)
    with admission.place(1, 4.0), admission.place(2, 4.0):
        assert (admission.n_open, admission.n_waiting) == (3, 1)
        with pytest.raises(ApiError) as caught, admission.place(1, 4.0):
            pass
        assert (caught.value.status, caught.value.code, caught.value.retry_after) == (429, "queue_full", 4.0)
    assert admission.n_open == 0
    with pytest.raises(ApiError, match="at most 3 answers"), admission.place(4, 1.0):
        pass
    admission.is_draining = True
    with pytest.raises(ApiError) as caught, admission.place(1, 1.0):
        pass
    assert caught.value.status == 503 and caught.value.retry_after


def test_an_unexpected_error_tells_nothing_of_itself():
    told = of_exception(OSError("/secret/path is broken"))
    assert told.status == 500 and "secret" not in str(error_body(told, "/v1/models"))


def test_errors_have_the_shape_of_their_dialect():
    error = ApiError(404, "model_not_found", "no such model", param="model", suggestion="list them", details={"a": 1})
    assert error_body(error, "/api/v1/models/x") == {
        "error": {
            "code": "model_not_found",
            "message": "no such model",
            "suggestion": "list them",
            "details": {"a": 1},
        }
    }
    assert error_body(error, "/v1/models/x") == {
        "error": {
            "message": "no such model; list them",
            "type": "not_found_error",
            "param": "model",
            "code": "model_not_found",
        }
    }


def test_bodies_of_all_requests_share_one_budget():
    budget = BodyBudget(10)
    with budget.share() as first, budget.share() as second:
        assert asyncio.run(read_body(messages(b"abc", b"def"), None, 100, 1, first)) == b"abcdef"
        second(4)
        with pytest.raises(ApiError) as caught:
            asyncio.run(read_body(messages(b"x"), None, 100, 1, second))
        assert (caught.value.status, caught.value.code, caught.value.headers["Retry-After"]) == (
            503,
            "too_many_bytes",
            "1",
        )
        assert budget.n_held == 10
    assert budget.n_held == 0


def test_a_body_beyond_the_budget_is_a_503_and_what_was_held_is_given_back(app_with):
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
