"""Rows of a batch: requests from JSON lines or table rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from woolly.serving.errors import ApiError, invalid_param

CHAT, TEXT, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
ENDPOINTS = (CHAT, TEXT, EMBEDDINGS, MESSAGES, RESPONSES)

_MAX_ID_LENGTH = 512  # maximum characters of a custom_id


@dataclass(frozen=True)
class BatchRow:
    """A request of a batch."""

    number: int  # from 0, in input order
    id: str  # custom_id, or a generated id
    url: str
    body: dict[str, Any]

    def key(self, identity: str, defaults: str) -> str:
        """Return a digest of everything that affects the answer."""
        facts = [identity, defaults, self.number, self.id, self.url, self.body]
        text = json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def with_model(self, name: str) -> BatchRow:
        """Return the row with a default model name, so that all rows of a job use the same model."""
        if self.body.get("model") not in (None, "loaded", "current"):
            return self
        return BatchRow(self.number, self.id, self.url, {**self.body, "model": name})

    def with_seed(self, key: str) -> BatchRow:
        """Return the row with a seed derived from its key unless it has a seed, so that runs are repeatable."""
        if self.url in (EMBEDDINGS, MESSAGES, RESPONSES) or self.body.get("seed") is not None:  # routes without a seed
            return self
        return BatchRow(self.number, self.id, self.url, {**self.body, "seed": int(key[:7], 16)})


@dataclass(frozen=True)
class BadRow:
    """Row that cannot be sent, with its error."""

    number: int
    id: str
    error: ApiError


def id_of(number: int, value: Any) -> str:
    """Return the custom_id of a row even if the rest is invalid, or an id generated from the row number."""
    given = value.get("custom_id") if isinstance(value, dict) else None
    return given if isinstance(given, str) and 0 < len(given) <= _MAX_ID_LENGTH else f"row-{number + 1}"


def read_row(number: int, value: Any) -> BatchRow:
    """Parse a row. Raises ApiError 400 for an invalid row.

    A string is a user message. An object with `body` has OpenAI's batch format. Any other object is a request body: a
    chat body if it has `messages`, a completion body if it has `prompt`, an embeddings body if it has `input`.
    """
    if isinstance(value, str):
        value = {"messages": [{"role": "user", "content": value}]}
    if not isinstance(value, dict):
        raise ApiError(400, "invalid_request", "expected a JSON object or a string in this row")
    given = value.get("custom_id")
    if given is not None and not (isinstance(given, str) and 0 < len(given) <= _MAX_ID_LENGTH):
        raise invalid_param("custom_id", f"expected a string of 1 to {_MAX_ID_LENGTH} characters")
    if "body" in value:
        url, body = _url(value), _checked(value["body"])
        if url == RESPONSES:
            if body.get("background"):
                raise invalid_param("background", "a batch already runs in the background; remove it")
            body = {"store": False, **body}
        return BatchRow(number, id_of(number, value), url, body)
    body = {name: one for name, one in value.items() if name != "custom_id"}
    for name, url in (("messages", CHAT), ("prompt", TEXT), ("input", EMBEDDINGS)):
        if name in body:
            return BatchRow(number, id_of(number, value), url, _checked(body))
    raise ApiError(400, "invalid_request", "the row has no body, messages, prompt or input; add one of them")


def _url(value: Mapping[str, Any]) -> str:
    if value.get("method", "POST") != "POST":
        raise invalid_param("method", "expected POST")
    url = value.get("url", CHAT)
    if url not in ENDPOINTS:
        raise invalid_param("url", f"expected one of {', '.join(ENDPOINTS)}, but got {str(url)[:80]!r}")
    return str(url)


def _checked(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise invalid_param("body", "expected an object")
    if body.get("stream"):
        raise invalid_param("stream", "batches cannot be streamed; remove it")
    return body
