"""/v1/messages/batches: chats answered in the background."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from typing import Annotated, Any, BinaryIO

from fastapi import Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from woolly.serving.batches.rows import MESSAGES
from woolly.serving.batches.store import ENDED
from woolly.serving.batches.worker import worker_of
from woolly.serving.dialects.reply import json_bytes
from woolly.serving.dialects.sampling_parameters import Items
from woolly.serving.errors import ApiError, invalid_param
from woolly.serving.gate.request_id import owner_of
from woolly.serving.generation.thread_pool import run_in_thread
from woolly.serving.router import APIRouter

router = APIRouter()

Data = dict[str, Any]

_ROUTE = "/v1/messages/batches"
_PREFIX, _OWN_PREFIX = "msgbatch_", "batch_"  # id prefixes for clients and in the store
_MAX_REQUESTS = 100_000  # requests per batch, Anthropic's limit
_LIFETIME = timedelta(hours=24)  # shown to clients, but batches of this server do not expire


class BatchRequest(BaseModel):
    """One request of a batch."""

    model_config = ConfigDict(extra="forbid")

    custom_id: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    params: dict[str, Any] = Field(description="The body of /v1/messages.")


class MessageBatchBody(BaseModel):
    """Body of a request for a batch."""

    model_config = ConfigDict(extra="forbid")

    requests: Items[BatchRequest] = Field(min_length=1, max_length=_MAX_REQUESTS)


@router.post(_ROUTE, response_model=None, summary="Create a batch of messages")
async def create_batch(body: MessageBatchBody, request: Request) -> Data:
    """Start a batch. The requests of a batch succeed or fail independently."""
    seen: set[str] = set()
    for i, one in enumerate(body.requests):
        if one.custom_id in seen:
            raise invalid_param(f"requests.{i}.custom_id", f"{one.custom_id!r} is used twice; use unique values")
        seen.add(one.custom_id)
    data = await run_in_thread(_rows, body)
    batch = await worker_of(request).add_rows(owner_of(request), MESSAGES, data, len(seen))
    return _shown(batch, request)


@router.get(_ROUTE, summary="List batches of messages")
async def list_batches(
    request: Request,
    limit: int = Query(20, ge=1, le=1000),
    before_id: str | None = Query(None, max_length=100),
    after_id: str | None = Query(None, max_length=100),
) -> Data:
    """Return the client's batches, newest first."""
    worker = worker_of(request)
    found = await asyncio.to_thread(worker.store.all_of, owner_of(request), "batch")
    batches = [_shown(worker.shown(one), request) for one in found if one["endpoint"] == MESSAGES]
    ids = [batch["id"] for batch in batches]
    if before_id in ids:
        end = ids.index(before_id)
        page, has_more = batches[max(0, end - limit) : end], end > limit
    else:
        first = ids.index(after_id) + 1 if after_id in ids else 0
        page, has_more = batches[first : first + limit], first + limit < len(batches)
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return {"data": page, "has_more": has_more, **ends}


@router.get(_ROUTE + "/{id}", summary="Get a batch of messages")
async def get_batch(id: str, request: Request) -> Data:
    """Return a batch with its request counts."""
    return _shown(await _found(id, request), request)


@router.get(_ROUTE + "/{id}/results", response_class=Response, summary="Get the results of a batch")
async def get_results(id: str, request: Request) -> Response:
    """Return the results of a finished batch: one JSON line per request, with its message or error."""
    batch = await _found(id, request)
    if batch["status"] not in ENDED:
        raise ApiError(404, "not_found", "the batch has no results yet; retry when it has ended")
    store = worker_of(request).store
    opened = ExitStack()  # opened before the reply starts, so that a batch deleted meanwhile is still read to its end
    try:
        files = [
            opened.enter_context(store.content(file_id).open("rb"))
            for file_id in (batch["output_file_id"], batch["error_file_id"], batch["input_file_id"])
            if file_id is not None
        ]
    except OSError:
        opened.close()
        raise ApiError(404, "not_found", f"the results of {id} no longer exist") from None
    return StreamingResponse(_results(opened, files, batch), media_type="application/x-jsonl")


@router.post(_ROUTE + "/{id}/cancel", response_model=None, summary="Cancel a batch of messages")
async def cancel_batch(id: str, request: Request) -> Data:
    """Cancel a batch. Finished answers become its results, and the other requests are canceled."""
    batch = await _found(id, request)
    return _shown(await worker_of(request).cancel(owner_of(request), batch["id"]), request)


@router.delete(_ROUTE + "/{id}", summary="Delete a batch of messages")
async def delete_batch(id: str, request: Request) -> Data:
    """Delete a finished batch and its results."""
    worker = worker_of(request)
    batch = await _found(id, request)
    async with worker.changing:
        await run_in_thread(worker.store.delete_batch, owner_of(request), batch["id"])
    return {"id": id, "type": "message_batch_deleted"}


async def _found(id: str, request: Request) -> Data:
    """Return the client's stored batch with current counts. Raises ApiError 404 if the batch does not exist."""
    worker = worker_of(request)
    own = id.removeprefix(_PREFIX) if id.startswith(_PREFIX) else ""
    try:
        batch = await asyncio.to_thread(worker.store.get, owner_of(request), f"{_OWN_PREFIX}{own}", "batch")
    except ApiError:
        batch = {"endpoint": None}
    if batch["endpoint"] != MESSAGES:
        raise ApiError(404, "not_found", f"unknown batch {id[:80]!r}")
    return worker.shown(batch)


def _shown(batch: Data, request: Request) -> Data:
    """Return a batch in Anthropic's format."""
    id, status = f"{_PREFIX}{batch['id'].removeprefix(_OWN_PREFIX)}", batch["status"]
    n_good, n_bad = batch["request_counts"]["completed"], batch["request_counts"]["failed"]
    n_left = batch["request_counts"]["total"] - n_good - n_bad
    is_ended, is_cancelled = status in ENDED, status == "cancelled"
    counts = {"processing": n_left, "succeeded": n_good, "errored": n_bad, "canceled": 0, "expired": 0}
    if is_ended:
        counts["processing"] = 0
        counts["canceled" if is_cancelled else "errored"] += n_left
    prefix = request.app.state.settings.api_prefix
    return {
        "id": id,
        "type": "message_batch",
        "processing_status": "ended" if is_ended else "canceling" if status == "cancelling" else "in_progress",
        "request_counts": counts,
        "created_at": _time(batch["created_at"]),
        "expires_at": _time(batch["created_at"], _LIFETIME),
        "ended_at": _time(batch[f"{status}_at"]) if is_ended else None,
        "cancel_initiated_at": _time(batch["cancelling_at"]),
        "archived_at": None,
        "results_url": f"{str(request.base_url).rstrip('/')}{prefix}{_ROUTE}/{id}/results" if is_ended else None,
    }


def _time(seconds: int | None, later: timedelta = timedelta()) -> str | None:
    return None if seconds is None else (datetime.fromtimestamp(seconds, timezone.utc) + later).isoformat()


def _rows(body: MessageBatchBody) -> bytes:
    """Return the requests as batch rows."""
    rows = ({"custom_id": one.custom_id, "url": MESSAGES, "body": one.params} for one in body.requests)
    return b"".join(json_bytes(row) + b"\n" for row in rows)


def _results(opened: ExitStack, files: Sequence[BinaryIO], batch: Data) -> Iterator[bytes]:
    """Yield a result line for each request: succeeded, errored or canceled."""
    *answered, asked = files
    seen: set[str] = set()
    with opened:
        for file in answered:
            for text in file:
                line = json.loads(text)
                seen.add(line["custom_id"])
                yield _line(line["custom_id"], _result(line["response"]))
        for text in asked:
            if (id := json.loads(text)["custom_id"]) not in seen:
                yield _line(id, _left(batch))


def _line(id: str, result: Data) -> bytes:
    return json_bytes({"custom_id": id, "result": result}) + b"\n"


def _result(reply: Data) -> Data:
    body = reply["body"]
    if reply["status_code"] < 400:
        return {"type": "succeeded", "message": body}
    if body.get("type") != "error":  # the row failed before it reached the route
        body = _error("invalid_request_error", body["error"]["message"])
    return {"type": "errored", "error": body}


def _left(batch: Data) -> Data:
    """Return the result of a request that was not sent."""
    if batch["status"] == "cancelled":
        return {"type": "canceled"}
    return {"type": "errored", "error": _error("api_error", batch["errors"]["data"][0]["message"])}


def _error(kind: str, message: str) -> Data:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": None}
