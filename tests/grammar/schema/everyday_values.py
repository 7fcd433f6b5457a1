"""JSON schemas of choices, numbers, texts and lists as people write them, each with one valid instance."""

from __future__ import annotations

from typing import Any

from tests.grammar.schema.everyday_objects import BOOLEAN, INTEGER, NUMBER, STRING, list_of, record

SCHEMAS: dict[str, tuple[dict[str, Any], Any]] = {
    "oneOf by const": (
        {
            "oneOf": [
                record("type", "radius", type={"const": "circle"}, radius={"type": "number", "exclusiveMinimum": 0}),
                record("type", "side", type={"const": "square"}, side=NUMBER),
            ]
        },
        {"type": "circle", "radius": 2.5},
    ),
    "oneOf by type": (
        record("id", id={"oneOf": [{"type": "string", "minLength": 1}, {"type": "integer"}]}),
        {"id": "x"},
    ),
    "oneOf by required": (
        {
            "type": "object",
            "properties": {"email": STRING, "phone": STRING},
            "oneOf": [{"required": ["email"]}, {"required": ["phone"]}],
        },
        {"email": "a"},
    ),
    "discriminator": (
        {
            "$defs": {
                "Cat": record("pet", "meows", pet={"const": "cat", "default": "cat"}, meows=INTEGER),
                "Dog": record("pet", pet={"const": "dog"}, barks=NUMBER),
            },
            **record(
                "pet",
                pet={
                    "discriminator": {"mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"}, "propertyName": "pet"},
                    "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
                },
            ),
        },
        {"pet": {"pet": "cat", "meows": 4}},
    ),
    "event": (
        record(
            "title",
            "start",
            title=STRING,
            start={"type": "string", "format": "date-time"},
            end={"type": "string", "format": "date-time"},
            all_day=BOOLEAN,
        ),
        {"title": "x", "start": "2024-02-29T12:00:00Z", "end": "2024-02-29T13:00:00.5+01:00", "all_day": False},
    ),
    "opening hours": (
        record("opens", opens={"type": "string", "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$"}),
        {"opens": "09:30"},
    ),
    "network": (
        record(
            "host",
            "port",
            host={"anyOf": [{"format": "ipv4", "type": "string"}, {"format": "hostname", "type": "string"}]},
            port={"type": "integer", "minimum": 1, "maximum": 65535},
        ),
        {"host": "10.0.0.1", "port": 8080},
    ),
    "colour": ({"type": "string", "pattern": "^#([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$"}, "#fa0"),
    "slug": (
        record("slug", slug={"type": "string", "pattern": "^[a-z0-9]+(?:-[a-z0-9]+)*$", "maxLength": 64}),
        {"slug": "a-b-3"},
    ),
    "telephone": (
        record("phone", phone={"type": "string", "pattern": r"^\+?[1-9]\d{1,14}$"}),
        {"phone": "+4930123456"},
    ),
    "price in steps": (record("price", price={"type": "number", "minimum": 0, "multipleOf": 0.01}), {"price": 12.34}),
    "even number": (record("n", n={"type": "integer", "multipleOf": 2, "maximum": 100}), {"n": 42}),
    "probabilities": (list_of({"type": "number", "minimum": 0, "maximum": 1}, minItems=2, maxItems=4), [0, 0.25, 1]),
    "matrix": (list_of(list_of(NUMBER, minItems=2, maxItems=2), minItems=2, maxItems=2), [[1, 0], [0, 1.5]]),
    "coordinates": (
        {
            "type": "array",
            "prefixItems": [
                {"type": "number", "minimum": -180, "maximum": 180},
                {"type": "number", "minimum": -90, "maximum": 90},
            ],
            "items": False,
            "minItems": 2,
        },
        [13.4, 52.5],
    ),
    "draft 7 tuple": (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "array",
            "items": [STRING, INTEGER],
            "additionalItems": False,
            "minItems": 2,
        },
        ["a", 1],
    ),
    "GeoJSON point": (
        record(
            "type",
            "coordinates",
            type={"type": "string", "enum": ["Point"]},
            coordinates=list_of(NUMBER, minItems=2, maxItems=3),
        ),
        {"type": "Point", "coordinates": [1, 2]},
    ),
    "days of the week": (
        record("days", days=list_of({"enum": ["mon", "tue", "wed", "thu", "fri"]}, uniqueItems=True, minItems=1)),
        {"days": ["tue", "mon"]},
    ),
    "tags": (
        record("tags", tags=list_of({"type": "string", "minLength": 1, "maxLength": 10}, maxItems=3)),
        {"tags": ["a", "b"]},
    ),
    "labels": (
        {"type": "object", "patternProperties": {"^[a-z]+$": {"type": "string"}}, "additionalProperties": False},
        {"app": "web"},
    ),
    "translations": (
        {
            "type": "object",
            "propertyNames": {"pattern": "^[a-z]{2}$"},
            "additionalProperties": STRING,
            "minProperties": 1,
        },
        {"de": "Hallo", "en": "Hello"},
    ),
    "settings map": (
        record("env", env={"type": "object", "additionalProperties": {"type": "string"}}, args=list_of(STRING)),
        {"env": {"A": "1"}, "args": ["-v"]},
    ),
    "shipping if then": (
        {
            **record("method", method={"enum": ["mail", "pickup"]}, address=STRING),
            "if": {"properties": {"method": {"const": "mail"}}},
            "then": {"required": ["address"]},
        },
        {"method": "mail", "address": "x"},
    ),
    "card with dependency": (
        {
            **record("name", name=STRING, card={"type": "string", "pattern": "^[0-9]{16}$"}, cvc=STRING),
            "dependentRequired": {"card": ["cvc"]},
        },
        {"name": "A", "card": "4111111111111111", "cvc": "123"},
    ),
    "quiz": (
        record(
            "questions",
            questions=list_of(
                record(
                    "question",
                    "options",
                    "answer",
                    question=STRING,
                    options=list_of(STRING, minItems=4, maxItems=4),
                    answer={"type": "integer", "minimum": 0, "maximum": 3},
                ),
                minItems=1,
                maxItems=10,
            ),
        ),
        {"questions": [{"question": "?", "options": ["a", "b", "c", "d"], "answer": 2}]},
    ),
    "extraction": (
        {
            "title": "Extraction",
            "description": "People and places.",
            **record(
                "people",
                "places",
                "sentiment",
                people=list_of({"$ref": "#/$defs/Person"}),
                places=list_of(STRING),
                sentiment={"type": "number", "minimum": -1, "maximum": 1},
            ),
            "$defs": {
                "Person": {
                    "title": "Person",
                    **record("name", name=STRING, role={"anyOf": [STRING, {"type": "null"}], "default": None}),
                }
            },
        },
        {"people": [{"name": "A", "role": None}], "places": ["B"], "sentiment": -0.5},
    ),
    "chain of thought": (
        record(
            "steps",
            "final_answer",
            steps=list_of(record("explanation", "output", explanation=STRING, output=STRING)),
            final_answer=STRING,
        ),
        {"steps": [{"explanation": "a", "output": "b"}], "final_answer": "c"},
    ),
    "expression": (
        {
            "$ref": "#/$defs/e",
            "$defs": {
                "e": {
                    "anyOf": [
                        NUMBER,
                        record(
                            "op",
                            "args",
                            op={"enum": ["+", "*"]},
                            args=list_of({"$ref": "#/$defs/e"}, minItems=2, maxItems=2),
                        ),
                    ]
                }
            },
        },
        {"op": "+", "args": [1, {"op": "*", "args": [2, 3.5]}]},
    ),
}
