"""Routes of `/` and the files of the web page."""

from __future__ import annotations

import re
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

from woolly import __version__
from woolly.serving.pages.web.assets import Asset, Assets
from woolly.serving.router import APIRouter

# Only files of this server and no inline code: HTML that a model generates is never executed.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "media-src data:",
        "connect-src 'self'",
        "font-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)

_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(self), payment=(), usb=()",
}

# Ollama's reply at this path; its clients and health checks compare the complete text. Clients of llama-server only
# check the status, and /health.
_OLLAMA_RUNS = "Ollama is running"

_HTML = ("text/html", "application/xhtml+xml")

_FILE = re.compile(r"/web/[0-9a-z]+/[A-Za-z0-9._/-]+")
_FOREVER = "public, max-age=31536000, immutable"


def is_public(method: str, path: str) -> bool:
    """Return True if a request is for the page or its files, which need no API key; the page asks the user for one."""
    return method in ("GET", "HEAD") and (path == "/" or _FILE.fullmatch(path) is not None)


def create_router(assets: Assets | None = None, *, has_page: bool = True) -> APIRouter:
    """Return the routes `/` and, with the page, `/web/`. Without the page, `/` returns no HTML.

    `/` returns JSON about the server to clients that accept JSON or HTML, and Ollama's health check text to others.
    """
    router = APIRouter(include_in_schema=False)
    found = Assets() if assets is None else assets

    @router.api_route("/", methods=["GET", "HEAD"])
    async def root(request: Request) -> Response:
        if has_page and _wants_page(request.headers.get("accept", "")):
            return _reply(request, found.page, "no-cache", {"Vary": "Accept"})
        headers = {"Vary": "Accept", "Cache-Control": "no-cache"}
        if _quality(request.headers.get("accept", ""), ("application/json", *_HTML)) > 0:
            return JSONResponse(_about(has_page), headers=headers)
        return PlainTextResponse(_OLLAMA_RUNS, headers=headers)

    if has_page:

        @router.api_route("/web/{stamp}/{name:path}", methods=["GET", "HEAD"])
        async def file(stamp: str, name: str, request: Request) -> Response:
            asset = found.files.get(name)
            if asset is None or name == "index.html":
                raise HTTPException(404, "unknown file; reload the page")
            # An older page may still request the file, which must not be cached under the old stamp.
            return _reply(request, asset, _FOREVER if stamp == found.stamp else "no-cache")

    return router


def _reply(request: Request, asset: Asset, cache: str, more: dict[str, str] | None = None) -> Response:
    headers = {**_HEADERS, "ETag": asset.etag, "Cache-Control": cache, **(more or {})}
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if asset.etag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(asset.body, media_type=asset.media_type, headers=headers)


def _about(has_page: bool) -> dict[str, Any]:
    return {
        "name": "woolly",
        "service": "woolly-server",
        "version": __version__,
        "docs": "/docs",
        "openapi": "/openapi.json",
        "health": "/health",
        "models": "/v1/models",
        "page": "/" if has_page else None,
    }


def _wants_page(accept: str) -> bool:
    """Return True for browsers, which accept HTML explicitly; API clients accept JSON or anything."""
    html = _quality(accept, _HTML)
    return html > 0 and html >= _quality(accept, ("application/json",))


def _quality(accept: str, kinds: tuple[str, ...]) -> float:
    best = 0.0
    for part in accept[:1000].lower().split(","):
        kind, *options = (piece.strip() for piece in part.split(";"))
        if kind in kinds:
            given = next((option[2:] for option in options if option.startswith("q=")), "1")
            best = max(best, float(given) if re.fullmatch(r"[01](\.[0-9]{0,3})?", given) else 1.0)
    return best
