"""The layers of the gate serve any ASGI app, alone and folded."""

import asyncio
import re

import pytest
from starlette.middleware import Middleware
from starlette.testclient import TestClient

from woolly.serving import Settings
from woolly.serving.dialect import Dialects
from woolly.serving.dialects import openai
from woolly.serving.gate.access_control import AccessMiddleware
from woolly.serving.gate.authenticator import Authenticator
from woolly.serving.gate.disconnect import DisconnectMiddleware
from woolly.serving.gate.draining import DrainingMiddleware
from woolly.serving.gate.error_handler import ErrorMiddleware
from woolly.serving.gate.exempt_paths import ExemptPaths
from woolly.serving.gate.rate_limits import KeyGuessLimiter, RateLimiter, RateLimitMiddleware
from woolly.serving.gate.request_body import BodyBudget, BodyMiddleware
from woolly.serving.gate.request_id import RequestIdMiddleware
from woolly.serving.observability.health import Health
from woolly.serving.observability.metrics import Stats
from woolly.serving.router import ParsedRequest

PATHS = ExemptPaths(
    frozenset({"/health"}), frozenset(), frozenset(), frozenset(), lambda _: None, lambda *_: False, lambda *_: False
)
KEY = {"x-api-key": "a-key"}


async def echo(scope, receive, send):
    """Replies with the client and the parsed body; fails at /fail."""
    if scope["path"] == "/fail":
        raise RuntimeError("a secret of the inside")
    value = await ParsedRequest(scope, receive).json()  # as a route reads it: raises what the layer found
    body = repr((scope["state"]["client"], value, (await receive())["body"])).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
def health():
    health = Health()
    health.set("ready")
    return health


@pytest.fixture
def front(health):
    """Gate layers for a front without models."""
    stats, rates, key_guesses = Stats(), RateLimiter(6), KeyGuessLimiter()
    authenticator = Authenticator(("a-key",), None, 60)
    settings = Settings(host="0.0.0.0", api_key=("a-key",))
    layers = [
        Middleware(RequestIdMiddleware, stats=stats, paths=PATHS),
        Middleware(ErrorMiddleware, stats=stats, dialects=Dialects([openai.DIALECT])),
        Middleware(
            AccessMiddleware,
            settings=settings,
            authenticator=authenticator,
            rates=rates,
            key_guesses=key_guesses,
            paths=PATHS,
        ),
        Middleware(RateLimitMiddleware, rates=rates, paths=PATHS),
        Middleware(DrainingMiddleware, health=health, paths=PATHS),
        Middleware(BodyMiddleware, budget=BodyBudget(1000), most=100, seconds=5),
        Middleware(DisconnectMiddleware, health=health),
    ]
    app = echo
    for layer, args, options in reversed(layers):
        app = layer(app, *args, **options)
    return TestClient(app)


def test_request_passes_all_layers_and_its_body_both_ways(front):
    reply = front.post("/echo", json={"a": 1}, headers={**KEY, "x-request-id": "mine"})
    assert reply.status_code == 200 and reply.headers["x-request-id"] == "mine"
    assert re.fullmatch(r"\('key:[0-9a-f]{8}', \{'a': 1\}, b'\{\"a\": ?1\}'\)", reply.text)


def test_each_layer_rejects_in_its_turn(front, health):
    def code(reply):
        return reply.status_code, reply.json()["error"]["code"]

    assert code(front.get("/echo")) == (401, "authentication_failed")
    assert code(front.post("/echo", content=b"{", headers=KEY)) == (400, "invalid_json")
    assert code(front.post("/echo", content=b"1" * 101, headers=KEY)) == (413, "body_too_large")
    failed = front.get("/fail", headers=KEY)
    assert code(failed) == (500, "internal_error") and "secret" not in failed.text
    health.set("draining")
    assert code(front.get("/echo", headers=KEY)) == (503, "server_stopping")
    assert front.get("/health").status_code == 200
    front.get("/echo", headers=KEY)
    front.get("/echo", headers=KEY)
    assert code(front.get("/echo", headers=KEY)) == (429, "rate_limit_exceeded")


def test_no_client_is_an_admin_before_its_key_is_known():
    seen = []

    async def look(scope, receive, send):
        seen.append(scope["state"]["is_admin"])

    async def ask(app):
        scope = {"type": "http", "method": "GET", "path": "/x", "headers": [], "client": ("127.0.0.1", 1)}
        await app(scope, None, None)

    asyncio.run(ask(RequestIdMiddleware(look, Stats(), PATHS)))
    assert seen == [False]
