"""docs/reference/http.md, from the routes of the server."""

from __future__ import annotations

from woolly.serving.lifecycle.app import create_app
from woolly.serving.settings.table import Settings

_HEAD = """# HTTP routes

Generated from the routes of the server by `scripts/generate`. [HTTP APIs](../use/http-api.md) describes the fields; a
running server shows forms for all of them at `/docs`, and `/openapi.json`.
"""
_TITLES = {"health": "Health", "metrics": "Metrics", "mcp": "MCP", "ole": "Native API"}


def reference() -> str:
    """Return the page as Markdown."""
    parts, groups = [_HEAD], dict[str, list[str]]()
    for path, operations in create_app(Settings()).openapi()["paths"].items():
        for method, operation in operations.items():
            row = f"| {method.upper()} | `{path}` | {operation['summary'].strip()} |"
            groups.setdefault(operation["tags"][0], []).append(row)
    for tag, rows in groups.items():
        title = _TITLES.get(tag, tag)
        parts.append(f"## {title}\n\n| method | route | |\n|---|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)
