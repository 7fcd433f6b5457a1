"""Authentication with keys and tokens, alone and with a real server."""

import base64
import hashlib
import hmac
import json
import time

import pytest

from woolly.serving.errors import ApiError
from woolly.serving.gate.authenticator import Authenticator

SECRET = "a secret of the operator, long enough"


def part(value):
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def signed(header, claims, hash=hashlib.sha256):
    """Sign like any JWT library (RFC 7515, RFC 7518 section 3.2)."""
    body = f"{part(header)}.{part(claims)}"
    return f"{body}.{part(hmac.new(SECRET.encode(), body.encode(), hash).digest())}"


@pytest.fixture
def authenticator():
    return Authenticator(("first-key", "second-key"), SECRET, 3600)


def test_only_configured_keys_are_accepted(authenticator):
    first, second = authenticator.identify("first-key"), authenticator.identify("second-key")
    assert first and second and first != second
    for wrong in (None, "", "first-ke", "first-key ", "FIRST-KEY", "first-key,second-key", "\ud800", "x" * 10**6):
        assert authenticator.identify(wrong) is None


def test_client_name_does_not_reveal_its_key(authenticator):
    assert "first" not in repr(authenticator.identify("first-key"))


def test_token_identifies_its_user_until_it_expires(authenticator, monkeypatch):
    token, seconds = authenticator.issue("ole", "first-key")
    assert seconds == 3600
    assert authenticator.identify(token).name == "user:ole"
    claims = authenticator.validate(token)
    assert claims["sub"] == "ole" and claims["exp"] - claims["iat"] == 3600
    now = time.time()
    for age, is_valid in ((3590, True), (3601, False)):
        monkeypatch.setattr(time, "time", lambda age=age: now - age)
        token, _ = authenticator.issue("ole", "first-key")
        assert (authenticator.validate(token) is not None) == is_valid


def test_user_shares_the_rate_of_its_key_and_is_unknown_to_others(authenticator):
    first, second = (authenticator.identify(authenticator.issue("ole", f"{n}-key")[0]) for n in ("first", "second"))
    assert first.name == second.name and first.owner != second.owner
    assert first.key == authenticator.identify("first-key").key != second.key
    again = Authenticator(("first-key",), None, 3600)
    assert again.identify(again.issue("ole", "first-key")[0]).owner == first.owner


def test_token_needs_a_key(authenticator):
    with pytest.raises(ApiError) as caught:
        authenticator.issue("ole", "wrong")
    assert (caught.value.status, caught.value.code) == (401, "authentication_failed")


def test_no_byte_of_a_token_can_be_changed(authenticator):
    token, _ = authenticator.issue("ole", "first-key")
    for i in range(0, len(token), 3):
        other = "A" if token[i] != "A" else "B"
        assert authenticator.validate(token[:i] + other + token[i + 1 :]) is None


def test_unsigned_token_is_rejected(authenticator):
    claims = {"sub": "ole", "iat": 0, "exp": 2**40, "key": "open"}
    for header in ({"alg": "none"}, {"alg": "HS256", "typ": "JWT"}):
        for signature in ("", part("x")):
            assert authenticator.validate(f"{part(header)}.{part(claims)}.{signature}") is None


def test_token_ends_with_its_key_and_the_secret(authenticator):
    token, _ = authenticator.issue("ole", "first-key")
    assert Authenticator(("first-key",), SECRET, 3600).validate(token)
    assert Authenticator(("second-key",), SECRET, 3600).validate(token) is None
    assert Authenticator(("first-key",), "another secret entirely, as long", 3600).validate(token) is None


def test_token_of_an_open_server_is_invalid_once_keys_are_needed():
    token, _ = Authenticator((), SECRET, 3600).issue("ole", "")
    assert Authenticator((), SECRET, 3600).validate(token)
    assert Authenticator(("key",), SECRET, 3600).validate(token) is None


@pytest.mark.parametrize("user", ["", "a\nb", "x" * 201])
def test_user_name_is_validated(authenticator, user):
    with pytest.raises(ApiError, match="user_id"):
        authenticator.issue(user, "first-key")


def test_token_is_a_standard_json_web_token(authenticator):
    token, _ = authenticator.issue("ole", "first-key")
    head, claims, signature = token.split(".")
    assert "=" not in token
    header = json.loads(base64.urlsafe_b64decode(head + "=="))
    assert header == {"alg": "HS256", "typ": "JWT"}
    expected = hmac.new(SECRET.encode(), f"{head}.{claims}".encode(), hashlib.sha256).digest()
    assert signature == part(expected)
    read = json.loads(base64.urlsafe_b64decode(claims + "=="))
    assert read["sub"] == "ole" and read["exp"] - read["iat"] == 3600 and "first-key" not in str(read)
    # What another library makes of the same claims is the same token to this server, however it writes its JSON.
    assert authenticator.validate(signed({"typ": "JWT", "alg": "HS256"}, read)) == read


def test_token_cannot_choose_its_algorithm_or_have_invalid_claims(authenticator):
    sound = authenticator.validate(authenticator.issue("ole", "first-key")[0])
    header = {"alg": "HS256", "typ": "JWT"}
    assert authenticator.validate(signed(header, sound)) == sound
    assert authenticator.validate(signed({"alg": "HS512"}, sound, hashlib.sha512)) is None
    for bad in ({}, {"alg": "none"}, {"alg": "hs256"}, {"alg": "RS256"}, {**header, "crit": ["exp"]}, [], "HS256"):
        assert authenticator.validate(signed(bad, sound)) is None
    for change in (
        {"exp": None}, {"exp": "tomorrow"}, {"exp": True}, {"exp": float("nan")}, {"exp": 1e300}, {"sub": None},
        {"sub": ""}, {"sub": 5}, {"key": None}, {"key": ["open"]}, {"nbf": 2**33}, {"nbf": "now"}, {"nbf": None},
        {"nbf": "0"}, {"exp": str(2**33)}, {"exp": float("inf")}, {"exp": [1]},
    ):  # fmt: skip
        assert authenticator.validate(signed(header, {**sound, **change})) is None, change
    for name in ("exp", "sub", "key"):
        assert authenticator.validate(signed(header, {k: v for k, v in sound.items() if k != name})) is None
    for claims in ([], "x", 5, None, b"no json", b"[" * 2000):
        assert authenticator.validate(signed(header, claims)) is None
    for text in ("", ".", "..", "...", "a.b.c.d", "x" * 5000):
        assert authenticator.validate(text) is None


def test_key_comparison_takes_constant_time(monkeypatch):
    compared = []
    plain = hmac.compare_digest

    def counted(one, other):
        compared.append(len(one) == len(other))
        return plain(one, other)

    monkeypatch.setattr(hmac, "compare_digest", counted)
    keys = [f"key-{i}" * (i + 1) for i in range(5)]
    authenticator = Authenticator(keys, SECRET, 60)
    for given in (*keys, "key-0", "k", "x" * 100, "\N{SHEEP}"):
        compared.clear()
        authenticator._match(given)
        assert compared == [True] * 5  # all of them, and digests of one length: neither place nor length shows
