"""The API reference: /openapi.json for programs, /docs for people. No script, no other host, no key."""

from __future__ import annotations

import json
from functools import cache
from html import escape
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, Response

__all__ = ["add_reference", "is_reference", "render"]

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
    "h2{font:600 1rem ui-monospace,monospace;margin:2rem 0 .2rem}p{margin:.2rem 0}"
    "table{border-collapse:collapse;margin:.5rem 0;font-size:.9rem}td{padding:.1rem 1rem .1rem 0;vertical-align:top}"
)
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def is_reference(method: str, path: str) -> bool:
    """Whether a request is for the reference, which is the same for every copy of this program."""
    return method in ("GET", "HEAD") and path in ("/docs", "/openapi.json")


def add_reference(app: FastAPI) -> None:
    """Answers /docs and /openapi.json; FastAPI's own page would fetch its scripts from another host.

    The first request makes both, which takes some tenths of a second: on a thread, because the loop streams answers
    meanwhile.
    """

    @cache
    def texts() -> tuple[str, str]:
        schema = app.openapi()
        return render(schema), json.dumps(schema, ensure_ascii=False, separators=(",", ":"))

    @app.api_route("/docs", methods=["GET", "HEAD"], include_in_schema=False)
    def docs() -> HTMLResponse:
        return HTMLResponse(texts()[0], headers={"Content-Security-Policy": _POLICY})

    @app.api_route("/openapi.json", methods=["GET", "HEAD"], include_in_schema=False)
    def openapi() -> Response:
        return Response(texts()[1], media_type="application/json")


def render(schema: dict[str, Any]) -> str:
    """Returns the page of an OpenAPI description."""
    title = f"{escape(schema['info']['title'])} {escape(schema['info']['version'])}"
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{title}</title><style>{_STYLE}</style><h1>{title}</h1>"
        "<p>Every route; <a href=openapi.json>openapi.json</a> has the same for programs. If the server has keys,"
        " requests send one as <code>Authorization: Bearer KEY</code> or <code>X-API-Key: KEY</code>.</p>"
    ]
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            parts.append(f"<h2>{method.upper()} {escape(path)}</h2><p>{escape(operation.get('summary', ''))}</p>")
            if text := operation.get("description"):
                parts.append(f"<p>{escape(text)}</p>")
            rows = [_row(p["name"], p.get("schema", {})) for p in operation.get("parameters", [])]
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            body = _resolve(schema, content.get("schema", {}))
            rows += [_row(name, field) for name, field in body.get("properties", {}).items()]
            if rows:
                parts.append(f"<table>{''.join(rows)}</table>")
    return "".join(parts)


def _resolve(schema: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Returns the object of a body: follows references, and takes the first of several forms."""
    for _ in range(8):
        forms = part.get("anyOf") or part.get("allOf")
        if "$ref" in part:
            part = schema["components"]["schemas"][part["$ref"].rsplit("/", 1)[1]]
        elif forms:
            part = forms[0]
        else:
            break
    return part


def _row(name: str, field: dict[str, Any]) -> str:
    text = field.get("description", "")
    return f"<tr><td><code>{escape(name)}</code><td>{escape(_kind(field))}<td>{escape(text)}"


def _kind(field: dict[str, Any]) -> str:
    if "$ref" in field:
        return str(field["$ref"].rsplit("/", 1)[1])
    if forms := field.get("anyOf") or field.get("oneOf"):
        kinds = dict.fromkeys(_kind(form) for form in forms)
        return " or ".join(kind for kind in kinds if kind != "null")
    if field.get("type") == "array":
        return f"list of {_kind(field.get('items', {})) or 'anything'}"
    return str(field.get("type", ""))
