"""Routes of Ollama that this server refuses, and why."""

from __future__ import annotations

from fastapi import Request

from woolly.serving.errors import ApiError
from woolly.serving.router import APIRouter

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

_OPERATOR = "requests do not change the models folder"

_SENTENCES = {
    ("DELETE", "/api/delete"): f"{_OPERATOR}; the operator removes a model by `woolly rm`",
    ("POST", "/api/create"): f"{_OPERATOR}; send system and options with each request",
    ("POST", "/api/copy"): f"{_OPERATOR}; the operator names a model by --alias",
    ("POST", "/api/push"): "models are not sent anywhere",
}


async def _refuse(request: Request) -> None:
    path = request.url.path
    sentence = _SENTENCES[request.method, path]
    raise ApiError(403, "not_supported", f"{request.method} {path}: {sentence}")


for _method, _path in _SENTENCES:
    router.add_api_route(_path, _refuse, methods=[_method])
