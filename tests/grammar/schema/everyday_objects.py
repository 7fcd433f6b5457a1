"""JSON schemas of records and tool arguments as people write them, each with one valid instance."""

from __future__ import annotations

from typing import Any

STRING: dict[str, Any] = {"type": "string"}
NUMBER: dict[str, Any] = {"type": "number"}
INTEGER: dict[str, Any] = {"type": "integer"}
BOOLEAN: dict[str, Any] = {"type": "boolean"}


def record(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def list_of(items: Any, **limits: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **limits}


ADDRESS = record(
    "street",
    "city",
    "country",
    street={"type": "string", "minLength": 1},
    city=STRING,
    zip={"type": "string", "pattern": "^[0-9]{5}(-[0-9]{4})?$"},
    country={"type": "string", "pattern": "^[A-Z]{2}$"},
)

SCHEMAS: dict[str, tuple[dict[str, Any], Any]] = {
    "address": (ADDRESS, {"street": "1 Main St", "city": "Bonn", "zip": "12345-6789", "country": "DE"}),
    "person with bounds": (
        record(
            "name",
            "age",
            name={"type": "string", "minLength": 1, "maxLength": 40},
            age={"type": "integer", "minimum": 0, "maximum": 130},
            email={"type": "string", "format": "email"},
        ),
        {"name": "Ada", "age": 36, "email": "ada@example.com"},
    ),
    "invoice": (
        record(
            "number",
            "lines",
            "total",
            number={"type": "string", "pattern": r"^INV-\d{4,}$"},
            issued={"type": "string", "format": "date"},
            lines=list_of(
                record(
                    "item",
                    "quantity",
                    "price",
                    item=STRING,
                    quantity={"type": "integer", "minimum": 1},
                    price={"type": "number", "minimum": 0},
                ),
                minItems=1,
            ),
            total={"type": "number", "exclusiveMinimum": 0},
            currency={"enum": ["EUR", "USD", None]},
        ),
        {
            "number": "INV-0042",
            "issued": "2024-02-29",
            "lines": [{"item": "pen", "quantity": 2, "price": 1.5}],
            "total": 3,
            "currency": None,
        },
    ),
    "weather tool": (
        record(
            "location",
            location={"type": "string", "description": "City and country"},
            unit={"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
            days={"type": "integer", "minimum": 1, "maximum": 14},
        ),
        {"location": "Paris, France", "unit": "celsius", "days": 3},
    ),
    "search tool": (
        record(
            "query",
            query=STRING,
            top_k={"type": "integer", "default": 10},
            filters={"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}},
        ),
        {"query": "llm", "top_k": 5, "filters": {"year": 2024, "lang": "en"}},
    ),
    "file edit tool": (
        {
            **record(
                "path",
                "edits",
                path=STRING,
                edits=list_of(record("old_text", "new_text", old_text=STRING, new_text=STRING)),
                dry_run={"type": "boolean", "default": False},
            ),
            "additionalProperties": False,
            "$schema": "http://json-schema.org/draft-07/schema#",
        },
        {"path": "a.py", "edits": [{"old_text": "x", "new_text": "y"}], "dry_run": True},
    ),
    "todo tool": (
        record(
            "todos",
            todos=list_of(
                record(
                    "content",
                    "status",
                    content={"type": "string", "minLength": 1},
                    status={"enum": ["pending", "in_progress", "completed"]},
                    id=STRING,
                )
            ),
        ),
        {"todos": [{"content": "test", "status": "pending", "id": "1"}, {"content": "land", "status": "completed"}]},
    ),
    "nullable field": (
        record("name", "nick", name=STRING, nick={"anyOf": [{"type": "string"}, {"type": "null"}]}),
        {"name": "Ada", "nick": None},
    ),
    "OpenAPI nullable": (
        record("id", id={"type": "integer", "format": "int64"}, note={"type": ["string", "null"]}),
        {"id": 7, "note": None},
    ),
    "OpenAPI pet": (
        {
            "$ref": "#/components/schemas/Pet",
            "components": {
                "schemas": {
                    "Pet": record(
                        "name",
                        "photoUrls",
                        id={"type": "integer", "format": "int64"},
                        name={"type": "string", "example": "doggie"},
                        category={"$ref": "#/components/schemas/Category"},
                        photoUrls=list_of(STRING),
                        status={"type": "string", "enum": ["available", "pending", "sold"]},
                    ),
                    "Category": record(id={"type": "integer", "format": "int64"}, name=STRING),
                }
            },
        },
        {"id": 1, "name": "Rex", "category": {"id": 2, "name": "Dogs"}, "photoUrls": ["a"], "status": "sold"},
    ),
    "OpenAPI allOf": (
        {
            "$defs": {"Error": record("code", code=INTEGER)},
            "allOf": [{"$ref": "#/$defs/Error"}, record("message", message=STRING)],
        },
        {"code": 404, "message": "gone"},
    ),
    "OpenAPI page": (
        record(
            "items",
            "total",
            items=list_of(record("id", id={"type": "string", "format": "uuid"})),
            total={"type": "integer", "minimum": 0},
            next={"type": ["string", "null"], "format": "uri"},
        ),
        {"items": [{"id": "123e4567-e89b-42d3-a456-426614174000"}], "total": 1, "next": "https://example.com/?p=2"},
    ),
    "enum with null": (record("size", size={"enum": ["s", "m", "l", None]}), {"size": None}),
    "enum of numbers": (
        {"type": "object", "properties": {"level": {"enum": [1, 2, 3]}}, "required": ["level"]},
        {"level": 2},
    ),
    "const version": (
        record("version", "data", version={"const": "1.0"}, data={"type": "object"}),
        {"version": "1.0", "data": {"a": [1]}},
    ),
    "tree": (
        {
            "$ref": "#/$defs/node",
            "$defs": {"node": record("value", value=STRING, children=list_of({"$ref": "#/$defs/node"}))},
        },
        {"value": "a", "children": [{"value": "b", "children": []}]},
    ),
    "linked list": (
        {**record("value", value=INTEGER, next={"anyOf": [{"$ref": "#"}, {"type": "null"}]})},
        {"value": 1, "next": {"value": 2, "next": None}},
    ),
    "file system": (
        {
            "$ref": "#/definitions/entry",
            "definitions": {
                "entry": {"oneOf": [{"$ref": "#/definitions/file"}, {"$ref": "#/definitions/folder"}]},
                "file": record("kind", "size", kind={"const": "file"}, size={"type": "integer", "minimum": 0}),
                "folder": record(
                    "kind",
                    "entries",
                    kind={"const": "folder"},
                    entries={"type": "object", "additionalProperties": {"$ref": "#/definitions/entry"}},
                ),
            },
        },
        {"kind": "folder", "entries": {"a": {"kind": "file", "size": 3}}},
    ),
}
