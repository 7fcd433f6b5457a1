"""JSON schemas from dictionaries and pydantic classes."""

from __future__ import annotations

from typing import Any


def read_schema(given: Any) -> Any:
    """Return the schema of a pydantic class (anything with `model_json_schema`); return other values unchanged."""
    make = getattr(given, "model_json_schema", None)
    return make() if callable(make) else given
