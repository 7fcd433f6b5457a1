"""In-process client that sends rows to the app's routes."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.types import Message

from woolly.serving.accounts.account import current_account
from woolly.serving.batches.rows import BatchRow
from woolly.serving.errors import ApiError, error_body, to_api_error
from woolly.serving.generation.generator import fairness_group, request_priority
from woolly.serving.observability.logs import ignored, log, request_id
from woolly.serving.observability.request_history import answer_log

_FULL = 429
_LATER = (_FULL, 503)
_SPENT = "rate_limit_exceeded"  # error code of accounts/quotas.py; messages differ between dialects
_MINUTE = 60.0
_BEHIND = -1  # priority below interactive requests


class RowDeferred(Exception):  # noqa: N818 - not an error: the row is sent again
    """Raised if a row must be sent again later.

    `is_full` means that other requests use the server's capacity, `is_spent` that the key has reached its limit.
    `is_full` and `is_spent` are False for other temporary errors.
    """

    def __init__(self, seconds: float, status: int, code: str, reason: str) -> None:
        super().__init__(reason)
        self.seconds = min(_MINUTE, seconds)  # an administrator may raise the limit meanwhile
        self.is_spent = code == _SPENT
        self.is_full = status == _FULL and not self.is_spent

    @classmethod
    def of(cls, error: ApiError) -> RowDeferred | None:
        """Return a RowDeferred for a temporary error, or None for a permanent error."""
        if error.status not in _LATER:
            return None
        return cls(error.retry_after or 1.0, error.status, error.code, error.message)


@dataclass(frozen=True)
class RowReply:
    """Reply of a route to one row."""

    status: int
    body: Any


async def send_row(app: FastAPI, row: BatchRow, owner: str = "", group: int | None = None) -> RowReply:
    """Send a row to its route and return the reply.

    Raises RowDeferred if the server is full or the key is over its limit.

    Rows of one `group` share a turn in the fair scheduler: a request of another group preempts one of them. Middleware
    is skipped because the batch has already passed through it. Run each row in a separate task, because this function
    sets the task's context variables.
    """
    id = secrets.token_hex(8)
    noted: list[str] = []
    request_priority.set(_BEHIND)
    fairness_group.set(group)
    request_id.set(id)
    answer_log.set(None)
    account = app.state.authenticator.account_of(owner)
    if owner and account is None and not app.state.authenticator.is_open:
        gone = ApiError(401, "authentication_failed", "the key of this batch is no longer valid")
        return RowReply(gone.status, error_body(gone))
    current_account.set(account)
    ignored.set(noted)
    state: dict[str, Any] = {"id": id, "client": "batch", "bucket": "batch", "owner": owner, "account": account}
    state |= {"is_admin": False, "json": row.body, "status": None, "reason": None, "ignored": noted}
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": row.url,
        "raw_path": row.url.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        "client": None,
        "server": None,
        "app": app,
        "state": state,
    }
    status, headers, parts = 500, {}, []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"{}", "more_body": False}  # the route reads the JSON from the state

    async def send(message: Message) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status = message["status"]
            headers = dict(message.get("headers", ()))
        else:
            parts.append(message.get("body", b""))

    try:
        routes = AsyncExitStackMiddleware(app.router)
        await ExceptionMiddleware(routes, handlers=app.exception_handlers)(scope, receive, send)
    except Exception as error:
        log.error("row failed", exc_info=error)
        api_error = to_api_error(error)
        return RowReply(api_error.status, error_body(api_error))
    body = json.loads(b"".join(parts))
    if status in _LATER:
        code = (state["reason"] or "").partition(":")[0]  # the code is the beginning of ApiError.reason
        raise RowDeferred(float(headers.get(b"retry-after", b"1")), status, code, body["error"]["message"])
    return RowReply(status, body)
