"""OpenAPI schema with the errors that this server sends."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

_ERRORS = {
    "400": "Invalid request; the message gives the reason.",
    "401": "Missing or invalid API key or token.",
    "403": "Not allowed.",
    "404": "Unknown model, session or route.",
    "408": "The request was too slow.",
    "413": "The body is too large.",
    "422": "The model is not supported, or it could not summarize a chat.",
    "429": "Too many requests; see Retry-After.",
    "500": "Internal error; search the server's log for the request id.",
    "501": "The route is disabled.",
    "503": "Loading, stopping, or out of memory; see Retry-After.",
    "504": "The answer timed out.",
    "507": "The disk is full.",
}

_SCHEMA = {"type": "object", "required": ["error"], "properties": {"error": {"type": ["object", "string"]}}}


def describe(app: FastAPI) -> None:
    """Replace FastAPI's schema of validation errors, which this server does not send."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
            for path, operations in schema["paths"].items():
                for operation in operations.values():
                    if "/health" not in path:
                        _document(operation)
            for part in schema.get("components", {}).get("schemas", {}).values():
                if part.get("additionalProperties") is False:  # unknown fields are accepted
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
