"""JSON schemas as callers give them."""

from __future__ import annotations

from typing import Any


def read_schema(given: Any) -> Any:
    """Returns the schema of a pydantic class (of anything with `model_json_schema`), and all else as it is."""
    make = getattr(given, "model_json_schema", None)
    return make() if callable(make) else given
