"""The BatchRow: one request of a batch, read from a line of JSON or a row of a table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from woolly.serving.errors import ApiError, invalid_param

CHAT, TEXT, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
MESSAGES = "/v1/messages"
ENDPOINTS = (CHAT, TEXT, EMBEDDINGS, MESSAGES)

_MAX_ID_LENGTH = 512  # characters of a custom_id


@dataclass(frozen=True)
class BatchRow:
    """A request of a batch."""

    number: int  # from 0 on, in the order of the input
    id: str  # the custom_id, or one made from the number
    url: str
    body: dict[str, Any]

    def key(self, identity: str, defaults: str) -> str:
        """Return the digest of all inputs of the answer."""
        facts = [identity, defaults, self.number, self.id, self.url, self.body]
        text = json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def with_model(self, name: str) -> BatchRow:
        """Return the row with a model's name, unless it has one: all rows of a job use the same default model."""
        if self.body.get("model") not in (None, "loaded", "current"):
            return self
        return BatchRow(self.number, self.id, self.url, {**self.body, "model": name})

    def with_seed(self, key: str) -> BatchRow:
        """Return the row with a seed derived from its key, unless it has one: repeated rows give equal answers."""
        if self.url in (EMBEDDINGS, MESSAGES) or self.body.get("seed") is not None:  # without a seed
            return self
        return BatchRow(self.number, self.id, self.url, {**self.body, "seed": int(key[:7], 16)})


@dataclass(frozen=True)
class BadRow:
    """Row that cannot be sent, with the reason."""

    number: int
    id: str
    error: ApiError


def id_of(number: int, value: Any) -> str:
    """Return the custom_id of a value, even if the rest is invalid; else one made from the number."""
    given = value.get("custom_id") if isinstance(value, dict) else None
    return given if isinstance(given, str) and 0 < len(given) <= _MAX_ID_LENGTH else f"row-{number + 1}"


def read_row(number: int, value: Any) -> BatchRow:
    """Return the row of a value. ApiError 400 says what is wrong with it.

    A text is a user message. An object with `body` is a line in the format of OpenAI's batches; any other object is
    the body itself, of a chat if it has `messages`, of a completion if it has `prompt`, of embeddings if it has
    `input`.
    """
    if isinstance(value, str):
        value = {"messages": [{"role": "user", "content": value}]}
    if not isinstance(value, dict):
        raise ApiError(400, "invalid_request", "a JSON object or a text was expected in this row")
    given = value.get("custom_id")
    if given is not None and not (isinstance(given, str) and 0 < len(given) <= _MAX_ID_LENGTH):
        raise invalid_param("custom_id", f"a text of 1 to {_MAX_ID_LENGTH} characters was expected")
    if "body" in value:
        return BatchRow(number, id_of(number, value), _url(value), _checked(value["body"]))
    body = {name: one for name, one in value.items() if name != "custom_id"}
    for name, url in (("messages", CHAT), ("prompt", TEXT), ("input", EMBEDDINGS)):
        if name in body:
            return BatchRow(number, id_of(number, value), url, _checked(body))
    raise ApiError(400, "invalid_request", "the row has no body, messages, prompt or input; one of them was expected")


def _url(value: Mapping[str, Any]) -> str:
    if value.get("method", "POST") != "POST":
        raise invalid_param("method", "POST was expected")
    url = value.get("url", CHAT)
    if url not in ENDPOINTS:
        raise invalid_param("url", f"it is {str(url)[:80]!r}; one of {', '.join(ENDPOINTS)} was expected")
    return str(url)


def _checked(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise invalid_param("body", "an object was expected")
    if body.get("stream"):
        raise invalid_param("stream", "a batch takes whole answers; leave it out")
    return body
