"""/v1/batches: files of requests that are answered while nobody waits."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any, Literal

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field

from woolly.serving.answers.threads import run_held
from woolly.serving.batches.worker import BatchWorker
from woolly.serving.dialects.openai.files import shown, store_of
from woolly.serving.gate.identity import owner_of
from woolly.serving.router import APIRouter

__all__ = [
    "BatchBody",
    "cancel_batch",
    "create_batch",
    "delete_batch",
    "get_batch",
    "list_batches",
    "router",
    "worker_of",
]

router = APIRouter()

Metadata = dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]]

_TIMES = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")


class BatchBody(BaseModel):
    """What a batch is made of."""

    model_config = ConfigDict(extra="forbid")

    input_file_id: str = Field(max_length=64)
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
    completion_window: str = Field("24h", max_length=16)  # this server starts at once and has no time to keep
    metadata: Metadata | None = Field(None, max_length=16, description="16 pairs at most, of 64 and 512 characters.")


@router.post("/v1/batches", response_model=None)
async def create_batch(body: BatchBody, request: Request) -> dict[str, Any]:
    """Starts to answer the rows of a file."""
    store, owner = store_of(request), owner_of(request)
    now = int(time.time())
    batch: dict[str, Any] = {
        "id": store.new_id("batch"),
        "object": "batch",
        "endpoint": body.endpoint,
        "errors": None,
        "input_file_id": body.input_file_id,
        "completion_window": body.completion_window,
        "status": "validating",
        "output_file_id": None,
        "error_file_id": None,
        "created_at": now,
        "expires_at": None,
        **{f"{name}_at": None for name in _TIMES},
        "request_counts": {"total": 0, "completed": 0, "failed": 0},
        "metadata": body.metadata,
        "owner": owner,
    }
    await worker_of(request).add(batch)
    return shown(batch)


@router.get("/v1/batches")
async def list_batches(request: Request, limit: int = 20, after: str | None = None) -> dict[str, Any]:
    """The client's batches, the latest first."""
    found = await asyncio.to_thread(store_of(request).all_of, owner_of(request), "batch")
    batches = [worker_of(request).shown(batch) for batch in found]
    ids = [batch["id"] for batch in batches]
    first = ids.index(after) + 1 if after in ids else 0
    page = [shown(batch) for batch in batches[first : first + max(1, min(limit, 100))]]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return {"object": "list", "data": page, "has_more": first + len(page) < len(batches), **ends}


@router.get("/v1/batches/{id}")
async def get_batch(id: str, request: Request) -> dict[str, Any]:
    """A batch, with its counts so far."""
    batch = await asyncio.to_thread(store_of(request).get, owner_of(request), id, "batch")
    return shown(worker_of(request).shown(batch))


@router.delete("/v1/batches/{id}")
async def delete_batch(id: str, request: Request) -> dict[str, Any]:
    """Removes a batch that has ended; its files stay."""
    async with worker_of(request).changing:
        await run_held(store_of(request).delete_batch, owner_of(request), id)
    return {"id": id, "object": "batch", "deleted": True}


@router.post("/v1/batches/{id}/cancel", response_model=None)
async def cancel_batch(id: str, request: Request) -> dict[str, Any]:
    """Ends a batch; the answers so far become its output."""
    return shown(await worker_of(request).cancel(owner_of(request), id))


def worker_of(request: Request) -> BatchWorker:
    """Returns what runs the batches of the server."""
    worker: BatchWorker = request.app.state.batches
    return worker
