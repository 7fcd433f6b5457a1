"""OpenAPI: the description at /openapi.json, with the errors that this server sends."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

_ERRORS = {
    "400": "The request cannot be served; the message says why.",
    "401": "A key or token is missing or wrong.",
    "403": "Not allowed.",
    "404": "No such model, session or route.",
    "408": "The request came too slowly.",
    "413": "The body is too large.",
    "422": "The file is not a model that can run, or the model wrote no note of a conversation.",
    "429": "Too many requests; Retry-After says when to try again.",
    "500": "The server failed; its log has the request id.",
    "501": "The server was started without this route.",
    "503": "Loading, stopping, or out of memory; Retry-After may say when to try again.",
    "504": "The answer took too long.",
    "507": "The disk that stores the sessions is full.",
}

_SCHEMA = {"type": "object", "required": ["error"], "properties": {"error": {"type": ["object", "string"]}}}


def describe(app: FastAPI) -> None:
    """Replaces FastAPI's own description of validation errors, which this server does not send."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
            for path, operations in schema["paths"].items():
                for operation in operations.values():
                    if "/health" not in path:
                        _document(operation)
            for part in schema.get("components", {}).get("schemas", {}).values():
                if part.get("additionalProperties") is False:  # unknown fields are taken without effect
                    del part["additionalProperties"]
            for unused in ("HTTPValidationError", "ValidationError"):
                schema.get("components", {}).get("schemas", {}).pop(unused, None)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _document(operation: dict[str, Any]) -> None:
    responses = operation["responses"]
    if "HTTPValidationError" in str(responses.get("422")):
        del responses["422"]
    for status, text in _ERRORS.items():
        responses.setdefault(status, {"description": text, "content": {"application/json": {"schema": _SCHEMA}}})
