"""/v1/batches: files of requests, answered in the background."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field

from woolly.serving.batches.rows import MESSAGES
from woolly.serving.batches.worker import worker_of
from woolly.serving.dialects.openai.files import shown, store_of
from woolly.serving.dialects.sampling_parameters import Metadata
from woolly.serving.gate.request_id import owner_of
from woolly.serving.generation.thread_pool import run_in_thread
from woolly.serving.router import APIRouter

router = APIRouter()


class BatchBody(BaseModel):
    """Body of POST /v1/batches."""

    model_config = ConfigDict(extra="forbid")

    input_file_id: str = Field(max_length=64)
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]
    completion_window: str = Field("24h", max_length=16)  # ignored: batches start immediately
    metadata: Metadata | None = None


@router.post("/v1/batches", response_model=None)
async def create_batch(body: BatchBody, request: Request) -> dict[str, Any]:
    """Start a batch that answers the rows of a file."""
    batch = store_of(request).new_batch(
        owner_of(request),
        body.endpoint,
        body.input_file_id,
        completion_window=body.completion_window,
        metadata=body.metadata,
    )
    await worker_of(request).add(batch)
    return shown(batch)


@router.get("/v1/batches")
async def list_batches(request: Request, limit: int = 20, after: str | None = None) -> dict[str, Any]:
    """Return the client's batches, newest first."""
    found = await asyncio.to_thread(store_of(request).all_of, owner_of(request), "batch")
    batches = [worker_of(request).shown(batch) for batch in found if batch["endpoint"] != MESSAGES]
    ids = [batch["id"] for batch in batches]
    first = ids.index(after) + 1 if after in ids else 0
    page = [shown(batch) for batch in batches[first : first + max(1, min(limit, 100))]]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return {"object": "list", "data": page, "has_more": first + len(page) < len(batches), **ends}


@router.get("/v1/batches/{id}")
async def get_batch(id: str, request: Request) -> dict[str, Any]:
    """Return a batch with its current counts."""
    batch = await asyncio.to_thread(store_of(request).get, owner_of(request), id, "batch")
    return shown(worker_of(request).shown(batch))


@router.delete("/v1/batches/{id}")
async def delete_batch(id: str, request: Request) -> dict[str, Any]:
    """Delete a finished batch, but not its files."""
    async with worker_of(request).changing:
        await run_in_thread(store_of(request).delete_batch, owner_of(request), id)
    return {"id": id, "object": "batch", "deleted": True}


@router.post("/v1/batches/{id}/cancel", response_model=None)
async def cancel_batch(id: str, request: Request) -> dict[str, Any]:
    """Cancel a batch; the existing answers become its output."""
    return shown(await worker_of(request).cancel(owner_of(request), id))
