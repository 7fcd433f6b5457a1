"""Tokens of an identity provider, whose keys a test makes."""

import asyncio
import base64
import json
import time
from http.client import IncompleteRead

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from woolly.errors import RequestError
from woolly.serving import Settings
from woolly.serving.accounts import oidc
from woolly.serving.accounts.account import Account, KeyLimits
from woolly.serving.accounts.oidc import Issuer
from woolly.serving.accounts.usage_meter import ANYONE, UsageMeter
from woolly.serving.errors import ApiError
from woolly.serving.gate.authenticator import Authenticator

ISSUER = "https://id.example.org"
KEYS = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("first", "second")}


def published(*names):
    keys = [json.loads(jwt.algorithms.ECAlgorithm.to_jwk(KEYS[name].public_key())) | {"kid": name} for name in names]
    return {"keys": [*keys, {"kty": "oct", "kid": "shared", "k": base64.urlsafe_b64encode(b"s" * 64).decode()}]}


def token(key="first", kid=None, alg="ES256", **claims):
    now = int(time.time())
    given = {"iss": ISSUER, "aud": "woolly", "sub": "ole", "exp": now + 60, **claims}
    return jwt.encode(
        {name: value for name, value in given.items() if value is not None},
        KEYS.get(key, key),
        alg,
        headers={"kid": kid or key},
    )


@pytest.fixture
def site():
    """Responses of the issuer's URLs."""
    return {
        f"{ISSUER}/.well-known/openid-configuration": {"issuer": ISSUER, "jwks_uri": f"{ISSUER}/keys"},
        f"{ISSUER}/keys": published("first"),
    }


@pytest.fixture
def issuer(site):
    made = Issuer(ISSUER, "woolly", "groups=admins", lambda url: site[url])
    made.refresh()
    return made


def test_token_of_the_issuer_identifies_its_user(issuer):
    authenticator = Authenticator(("plain",), None, 60, issuer=issuer)
    ole = authenticator.identify(token())
    assert (ole.name, ole.owner, ole.is_admin, ole.account.name) == ("oidc:ole", "oidc:ole", False, "oidc:ole")
    assert authenticator.identify(token(groups=["users", "admins"])).is_admin
    assert not authenticator.identify(token(groups="adminsandmore")).is_admin
    assert authenticator.identify("plain") is not None and not authenticator.is_open
    assert authenticator.account_of("oidc:ole").name == "oidc:ole"
    assert not Authenticator((), None, 60, issuer=issuer).is_open


def test_user_is_not_the_key_of_the_same_name(issuer):
    """Limits and usage are counted by the name of the account."""
    ole, nobody = issuer.identify(token()), issuer.identify(token(sub=ANYONE))
    key = Account("ole", "name:ole", limits=KeyLimits(requests_per_day=1))
    meter = UsageMeter()
    meter.admit(ole)
    meter.admit(key)
    with pytest.raises(ApiError, match="the key ole has reached its limit of 1 requests"):
        meter.admit(key)
    assert nobody.name != ANYONE


def test_other_tokens_are_rejected(issuer):
    public = published("first")["keys"][0]["x"]
    unsigned = [{"alg": "none", "kid": "first"}, {"iss": ISSUER, "aud": "woolly", "sub": "ole", "exp": 2**33}]
    forged = ".".join(base64.urlsafe_b64encode(json.dumps(one).encode()).rstrip(b"=").decode() for one in unsigned)
    for wrong in (
        token(aud="another"),
        token(aud=None),
        token(iss="https://evil.example.org"),
        token(exp=int(time.time()) - 3600),
        token(exp=None),
        token(sub=None),
        token(sub="a name with spaces"),
        token("second", kid="first"),
        token("second"),
        token(key=public, kid="first", alg="HS256"),  # the public key as the secret of an HMAC
        token(key="s" * 64, kid="shared", alg="HS256"),
        f"{forged}.",
        token()[:-4] + "AAAA",
        "a.b.c",
        "",
    ):
        assert issuer.identify(wrong) is None, wrong


def test_rotated_keys_are_fetched_again(issuer, site):
    site[f"{ISSUER}/keys"] = published("second")
    assert issuer.identify(token("second")) is None and issuer._is_missing
    issuer.refresh()
    assert issuer.identify(token("second")).name == "oidc:ole" and issuer.identify(token("first")) is None


@pytest.mark.parametrize(
    ("address", "reply", "says"),
    [
        ("/keys", None, "cannot be fetched"),
        ("/keys", {"keys": []}, "has no signing key"),
        ("/keys", ["a", "list"], "cannot be fetched"),
        (
            "/.well-known/openid-configuration",
            {"issuer": "x", "jwks_uri": "y"},
            "its discovery document names the issuer 'x'",
        ),
        ("/.well-known/openid-configuration", {"issuer": ISSUER, "jwks_uri": 1}, "cannot be fetched"),
        (
            "/.well-known/openid-configuration",
            {"issuer": ISSUER, "jwks_uri": "http://id.example.org/keys"},
            "its jwks_uri is 'http://id.example.org/keys'; expected an address with https://",
        ),
    ],
)
def test_issuer_without_keys_is_rejected(issuer, site, address, reply, says):
    site[f"{ISSUER}{address}"] = reply
    with pytest.raises(RequestError, match=says):
        issuer.refresh()
    assert issuer.identify(token()) is not None  # the earlier keys stay


def test_settings_that_admit_everyone_are_rejected():
    for given, says in (
        ({"oidc_issuer": "http://id.example.org", "oidc_audience": "a"}, "expected an address with https://"),
        ({"oidc_issuer": ISSUER}, "set without oidc_audience"),
        ({"oidc_issuer": ISSUER, "oidc_audience": "a", "oidc_admin": "admins"}, "expected CLAIM=VALUE"),
        ({"oidc_audience": "a"}, "set without oidc_issuer"),
    ):
        with pytest.raises(RequestError, match=says):
            Settings(**given)
    assert Settings(oidc_issuer=ISSUER, oidc_audience="a").has_keys


def test_unusable_key_does_not_affect_others(issuer, site):
    odd = [{"kty": "EC", "kid": "odd", "crv": "P-0", "x": "AA", "y": "AA"}, {"kty": "RSA", "kid": "empty"}, "text"]
    site[f"{ISSUER}/keys"]["keys"][:0] = odd
    issuer.refresh()
    assert issuer.identify(token()) is not None


@pytest.mark.parametrize("error", [IncompleteRead(b""), RecursionError("deep"), OSError("gone")])
def test_keys_are_fetched_again_after_any_failure(issuer, monkeypatch, error):
    monkeypatch.setattr(oidc, "_LOOK", 0.0)
    monkeypatch.setattr(oidc, "_HOUR", -1.0)

    async def refreshed():
        again, replies, fetch, loop = asyncio.Event(), iter([error]), issuer._fetch, asyncio.get_running_loop()

        def failing(url):
            if (wrong := next(replies, None)) is not None:
                raise wrong
            loop.call_soon_threadsafe(again.set)
            return fetch(url)

        issuer._fetch = failing
        running = asyncio.create_task(issuer.run())
        await asyncio.wait_for(again.wait(), 60)
        assert not running.done()
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(refreshed())
