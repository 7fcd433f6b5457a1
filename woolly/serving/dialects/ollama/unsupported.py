"""Ollama's routes that are not supported, with the reasons."""

from __future__ import annotations

from fastapi import Request

from woolly.serving.errors import ApiError
from woolly.serving.router import APIRouter

router = APIRouter(include_in_schema=False)

_SENTENCES = {
    ("POST", "/api/push"): "uploading models is not supported",
    (
        "POST",
        "/api/blobs/{digest}",
    ): "uploads are not supported; put a GGUF file into the models folder",
}


async def _reject(request: Request) -> None:
    path = request.url.path
    sentence = _SENTENCES[request.method, request.scope["route"].path]
    raise ApiError(403, "not_supported", f"{request.method} {path[:200]}: {sentence}")


for _method, _path in _SENTENCES:
    router.api_route(_path, methods=[_method])(_reject)


@router.head("/api/blobs/{digest}")
async def _no_blob(digest: str) -> None:
    raise ApiError(404, "not_found", f"unknown blob {digest[:80]}")
