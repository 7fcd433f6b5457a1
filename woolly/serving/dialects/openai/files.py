"""/v1/files: input and output files of batches."""

from __future__ import annotations

import asyncio
from datetime import datetime, timezone
from typing import Any

from fastapi import Request, Response
from fastapi.responses import FileResponse

from woolly.serving.batches.store import BatchStore
from woolly.serving.dialects.openai.form import read_form
from woolly.serving.errors import ApiError, invalid_param
from woolly.serving.gate.request_id import owner_of
from woolly.serving.generation.thread_pool import run_in_thread
from woolly.serving.router import APIRouter

router = APIRouter()

_PURPOSE = "batch"


@router.post("/v1/files", response_model=None)
async def create_file(request: Request) -> dict[str, Any]:
    """Store an uploaded file of rows; the form has `purpose` and `file`."""
    form = await run_in_thread(read_form, request.scope["state"].get("form_type", ""), await request.body())
    purpose = form.get("purpose", (None, b""))[1].decode("utf-8", "replace")
    if purpose != _PURPOSE:
        raise invalid_param("purpose", f"expected 'batch', but got {purpose[:40]!r}")
    if "file" not in form:
        raise invalid_param("file", "the form has no file; add one")
    name, data = form["file"]
    async with request.app.state.batches.changing:
        file = await run_in_thread(
            store_of(request).add_file, owner_of(request), (name or "rows.jsonl")[:200], purpose, data
        )
    return _shown(file, request)


@router.get("/v1/files")
async def list_files(request: Request) -> dict[str, Any]:
    """Return the client's files, newest first."""
    found = await asyncio.to_thread(store_of(request).all_of, owner_of(request), "file")
    files = [_shown(file, request) for file in found]
    if not _is_anthropic(request):
        return {"object": "list", "data": files, "has_more": False}
    ends = {"first_id": files[0]["id"], "last_id": files[-1]["id"]} if files else {"first_id": None, "last_id": None}
    return {"data": files, "has_more": False, **ends}


@router.get("/v1/files/{id}")
async def get_file(id: str, request: Request) -> dict[str, Any]:
    """Return the metadata of a file."""
    return _shown(await asyncio.to_thread(store_of(request).get, owner_of(request), id, "file"), request)


@router.get("/v1/files/{id}/content", response_class=Response)
async def get_content(id: str, request: Request) -> Response:
    """Return the content of a file."""
    file = await asyncio.to_thread(store_of(request).get, owner_of(request), id, "file")
    path = store_of(request).content(id)
    if not path.is_file():
        raise ApiError(404, "not_found", f"the content of {id} was deleted")
    return FileResponse(path, media_type="application/jsonl", filename=file["filename"])


@router.delete("/v1/files/{id}")
async def delete_file(id: str, request: Request) -> dict[str, Any]:
    """Delete a file."""
    async with request.app.state.batches.changing:
        await run_in_thread(store_of(request).delete_file, owner_of(request), id)
    return (
        {"id": id, "type": "file_deleted"} if _is_anthropic(request) else {"id": id, "object": "file", "deleted": True}
    )


def store_of(request: Request) -> BatchStore:
    """Return the server's batch store."""
    store: BatchStore = request.app.state.batches.store
    return store


def _is_anthropic(request: Request) -> bool:
    """Return True for a client of Anthropic's API, which has the same routes."""
    return "anthropic-version" in request.headers


def _shown(file: dict[str, Any], request: Request) -> dict[str, Any]:
    """Return a file in the client's format."""
    if not _is_anthropic(request):
        return shown(file)
    return {
        "id": file["id"],
        "type": "file",
        "filename": file["filename"],
        "mime_type": "application/jsonl",
        "size_bytes": file["bytes"],
        "created_at": datetime.fromtimestamp(file["created_at"], timezone.utc).isoformat().replace("+00:00", "Z"),
        "downloadable": True,
    }


def shown(found: dict[str, Any]) -> dict[str, Any]:
    """Return an object without its internal fields."""
    return {name: value for name, value in found.items() if name != "owner"}
