"""API reference: /openapi.json for programs, and /docs with a form for each route.

The page is the same on every server of this version and needs no key; its forms send the key that the user enters. The
Content-Security-Policy allows only its inline script, by digest.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, Response

_STYLE = (
    # On the root: otherwise, the canvas behind the body and the colors of links stay those of a light page.
    ":root{color-scheme:light dark}"
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "details{border-top:1px solid color-mix(in srgb,currentcolor 20%,transparent);padding:.35rem 0}"
    "summary{cursor:pointer;overflow-wrap:anywhere}summary code{font-weight:600}summary b{display:inline-block;"
    "min-width:4.2rem;font:600 .8rem ui-monospace,monospace;opacity:.75}p{margin:.3rem 0}"
    "table{border-collapse:collapse;margin:.5rem 0;font-size:.9rem}td{padding:.1rem 1rem .1rem 0;vertical-align:top}"
    "nav{position:sticky;top:0;display:flex;flex-wrap:wrap;gap:.5rem;padding:.6rem 0;background:canvas}"
    "input,textarea,button{font:inherit;padding:.35rem .6rem;border:1px solid color-mix(in srgb,currentcolor 40%,"
    "transparent);border-radius:8px}nav input{flex:1;min-width:12rem}form input{margin:0 .5rem .4rem 0}"
    "textarea,form pre{display:block;width:100%;box-sizing:border-box;font:.85rem/1.5 ui-monospace,monospace}"
    "form{margin:.6rem 0}form pre{max-height:26rem;overflow:auto;padding:.7rem;border-radius:8px;white-space:pre-wrap;"
    "overflow-wrap:anywhere;background:color-mix(in srgb,currentcolor 7%,transparent)}button{cursor:pointer}"
)
_SCRIPT = Path(__file__).with_name("reference.js").read_text(encoding="utf-8")
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "style-src 'unsafe-inline'",
        f"script-src 'sha256-{b64encode(sha256(_SCRIPT.encode()).digest()).decode()}'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)

# Sample values of body fields; other fields get an empty value of their type.
_SAMPLES: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hi"}],
    "contents": [{"role": "user", "parts": [{"text": "Hi"}]}],
    "prompt": "Once upon a time",
    "input": "Hi",
    "content": "Hi",
    "query": "Which animal is woolly?",
    "documents": ["A mammoth.", "A fish."],
    "texts": ["Hi"],
}
_BRIEF = {"max_tokens": 32, "n_predict": 32, "max_output_tokens": 32}  # short answers
_EMPTY: dict[str, Any] = {"string": "", "integer": 1, "number": 1, "boolean": False, "array": [], "object": {}}


def is_reference(method: str, path: str) -> bool:
    """Return True if a request is for the API reference, which is the same on every server."""
    return method in ("GET", "HEAD") and path in ("/docs", "/openapi.json")


def add_reference(app: FastAPI) -> None:
    """Add /docs and /openapi.json; FastAPI's page would load scripts from another host.

    The first request renders both on a thread, because rendering takes several 100 ms and must not delay streams.
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
    """Render an OpenAPI schema as HTML."""
    title = f"{escape(schema['info']['title'])} {escape(schema['info']['version'])}"
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{title}</title><style>{_STYLE}</style><h1>{title}</h1>"
        "<p>All routes, each with a form to try it. <a href=openapi.json>openapi.json</a> is the OpenAPI schema. If"
        " the server has keys, requests send one as <code>Authorization: Bearer KEY</code> or"
        " <code>X-API-Key: KEY</code>.</p>"
        "<nav><input id=find type=search placeholder='Find a route' aria-label='Find a route'>"
        "<input id=key type=password placeholder='API key' aria-label=Key autocomplete=off></nav>"
    ]
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            parts.append(_route(schema, path, method, operation))
    return "".join((*parts, f"<script type=module>{_SCRIPT}</script>"))


def _route(schema: dict[str, Any], path: str, method: str, operation: dict[str, Any]) -> str:
    parameters = operation.get("parameters", [])
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    body = _resolve(schema, content.get("schema", {}))
    rows = [_row(p["name"], p.get("schema", {})) for p in parameters]
    rows += [_row(name, field) for name, field in body.get("properties", {}).items()]
    named = [p["name"] for p in parameters if p["in"] in ("path", "query")]
    given = [name for name in re.findall(r"\{(\w+)", path) if name not in named]  # read by the route itself
    example = f" data-example={_quoted(json.dumps(_example(body), indent=2))}" if "requestBody" in operation else ""
    table = f"<table>{''.join(rows)}</table>" if rows else ""
    return (
        f"<details data-method={method.upper()} data-path={_quoted(path)}"
        f" data-params={_quoted(json.dumps([*given, *named]))}{example}>"
        f"<summary><b>{method.upper()}</b> <code>{escape(path)}</code> {escape(operation.get('summary', ''))}</summary>"
        f"<p>{escape(operation.get('description', ''))}</p>{table}</details>"
    )


def _quoted(text: str) -> str:
    return f"'{escape(text)}'"


def _example(body: dict[str, Any]) -> dict[str, Any]:
    """Return a sample body with the required fields and limits that keep answers short."""
    fields = body.get("properties", {})
    wanted = [name for name in fields if name in body.get("required", []) or (name in _SAMPLES and name != "content")]
    if "messages" in wanted and "prompt" in wanted:
        wanted.remove("prompt")
    made = {name: _SAMPLES.get(name, _EMPTY.get(_kind(fields[name]).split(" ")[0])) for name in wanted}
    return made | {name: value for name, value in _BRIEF.items() if name in fields}


def _resolve(schema: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Resolve references in a schema, using the first of several alternatives."""
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
