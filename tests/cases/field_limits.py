"""Request bodies made from the OpenAPI description: each field at its limit and at ten times its limit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from woolly.sampling import SamplingParams, options_of
from woolly.serving.gate.json_parser import MAX_VALUES

# Limits of fields that declare none.
_N_CHARS = 100_000
_N_ITEMS = 10_000
_NUMBER = 2**31 - 1

_MAX_VALUES = MAX_VALUES - 1000  # of the large field; the rest of the body has a few

_MAX_DEPTH = 4  # levels of nested bodies

# Fields that make a field of the same body take effect, so that its cost is paid.
_ROWS = options_of(SamplingParams)
_MASTERS = {
    name: {master: 1 if _ROWS[master].kind is int else 0.5 for master in row.needs} for name, row in _ROWS.items()
}
_MASTERS["top_logprobs"] = {"logprobs": True}
_MASTERS["stream_options"] = {"stream": True}

_HI = [{"role": "user", "content": "hi"}]
_CONTENTS = [{"role": "user", "parts": [{"text": "hi"}]}]
_GOOGLE = {"contents": _CONTENTS, "generationConfig": {"maxOutputTokens": 1}}

# What a field's name asks for; a field of another name gets the smallest value of its type.
_VALUES: dict[str, Any] = {
    "messages": _HI, "prompt": "hi", "input": "hi", "max_tokens": 1, "n_predict": 1, "max_output_tokens": 1,
    "query": "hi", "texts": ["hi"], "content": "hi", "documents": ["hi"], "contents": _CONTENTS,
    "input_prefix": "hi", "input_suffix": "hi", "tokens": [1], "role": "user", "type": "text",
}  # fmt: skip
_BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": _HI, "max_tokens": 1},
    "/v1/completions": {"prompt": "hi", "max_tokens": 1},
    "/completions": {"prompt": "hi", "n_predict": 1},
    "/infill": {"input_prefix": "hi", "input_suffix": "hi", "n_predict": 1},
    "/v1/responses": {"input": "hi", "max_output_tokens": 1},
    "/v1/messages": {"model": "", "messages": _HI, "max_tokens": 1},
    "/api/chat": {"model": "", "messages": _HI, "options": {"num_predict": 1}},
    "/api/generate": {"model": "", "prompt": "hi", "options": {"num_predict": 1}},
    "/api/v1/inference/complete": {"prompt": "hi", "max_tokens": 1},
    "/v1beta/models/{model}:generateContent": _GOOGLE,
    "/v1beta/models/{model}:countTokens": {"contents": _CONTENTS},
    "/v1/score": {"text_1": "hi", "text_2": ["hi"]},
    "/tokenize": {"content": "hi"},
}

# Routes that measure or change the server itself.
_SKIPPED = ("/performance/benchmark", "/models/load", "/models/unload", "{name}/load", "/pull")


@dataclass(frozen=True)
class FieldCase:
    """A request in which one field is large."""

    method: str
    path: str
    field: str  # dotted path in the body
    size: str
    body: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.method} {self.path} {self.field} {self.size}"


def field_cases(description: dict[str, Any], model: str, only: str = "") -> Iterator[FieldCase]:
    """Yield the cases of each body of a description once, with the first route that takes it.

    `only` names one route, of which nested bodies are left out.
    """
    schemas = description["components"]["schemas"]
    seen: set[str] = set()
    fields = _Fields(schemas, 1 if only else _MAX_DEPTH)
    for path, methods in description["paths"].items():
        for method, operation in methods.items() if only in ("", path) else ():
            content = operation.get("requestBody", {}).get("content", {})
            if "application/json" not in content or any(part in path for part in _SKIPPED):
                continue
            schema = content["application/json"]["schema"]
            if (key := str(schema)) in seen:
                continue
            seen.add(key)
            base = _BODIES.get(path)
            if base is None:
                found = fields.minimal(schema)
                base = found if isinstance(found, dict) else {}
            if "model" in base:
                base = {**base, "model": model}
            url = path.replace("{model}", model).replace("{name}", model).replace("{id}", "x").replace("{id_slot}", "0")
            for name, size, body in fields.variants(schema, base, ""):
                yield FieldCase(method.upper(), url, name, size, body)


class _Fields:
    def __init__(self, schemas: dict[str, Any], depth: int) -> None:
        self._schemas, self._depth = schemas, depth
        self._seen: set[tuple[str, ...]] = set()  # names of the fields of nested bodies, which several APIs share

    def variants(
        self, schema: dict[str, Any], base: dict[str, Any], prefix: str, depth: int = 1
    ) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield (field, size, body) for each field of an object."""
        for one in self._kinds(schema):
            for name, field in one.get("properties", {}).items():
                body = {**base, **_MASTERS.get(name, {})}
                for kind in self._kinds(field):
                    for size, value in self._sizes(kind):
                        yield f"{prefix}{name}", size, {**body, name: value}
                    items = kind.get("items", {}) if kind.get("type") == "array" else {}
                    if depth == self._depth:
                        continue
                    for inner, in_list in ((kind, False), *((item, True) for item in self._kinds(items))):
                        names = tuple(inner.get("properties", ()))
                        if not names or names in self._seen:
                            continue
                        self._seen.add(names)
                        smallest = self.minimal(inner)
                        if isinstance(sent := base.get(name), dict):
                            smallest |= sent
                        for place, size, value in self.variants(inner, smallest, f"{prefix}{name}.", depth + 1):
                            yield place, size, {**body, name: [value] if in_list else value}

    def minimal(self, schema: dict[str, Any], depth: int = 0) -> Any:
        """Return the smallest value that a schema accepts."""
        kind = next(iter(self._kinds(schema)), {})
        if "const" in kind or "enum" in kind:
            return kind.get("const", kind.get("enum", [None])[0])
        type_ = kind.get("type")
        if type_ == "object" or "properties" in kind:
            needed = kind.get("required", []) if depth < self._depth + 2 else []
            known = kind.get("properties", {})
            return {name: _VALUES.get(name, self.minimal(known.get(name, {}), depth + 1)) for name in needed}
        if type_ == "array":
            return [self.minimal(kind.get("items", {}), depth + 1)] if kind.get("minItems") else []
        return {"string": "a" * kind.get("minLength", 1), "boolean": False}.get(str(type_), kind.get("minimum", 1))

    def _kinds(self, schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the alternatives of a schema, with references resolved."""
        while "$ref" in schema:
            schema = self._schemas[schema["$ref"].rpartition("/")[2]]
        choices = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
        if not choices:
            yield schema
            return
        for one in choices:
            yield from self._kinds(one)

    def _sizes(self, kind: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield (name, value) at the limit of a field and at ten times its limit."""
        for factor in (1, 10):
            label = f"{kind.get('type')} x{factor}"
            if kind.get("type") == "string" and "enum" not in kind and "const" not in kind:
                n = factor * kind.get("maxLength", _N_CHARS)
                yield label, ("word " * (n // 5 + 1))[:n]
                yield f"{label} of brackets", ("([{" * (n // 3 + 1))[:n]
            elif kind.get("type") in ("integer", "number"):
                number = int if kind["type"] == "integer" else float
                yield label, factor * number(kind.get("maximum", kind.get("exclusiveMaximum", _NUMBER)))
                yield f"{label} below", factor * number(kind.get("minimum", kind.get("exclusiveMinimum", -_NUMBER)))
            elif kind.get("type") == "array":
                n = factor * kind.get("maxItems", _N_ITEMS)
                for i, item in enumerate(self._kinds(kind.get("items", {"type": "string"}))):
                    # Below the limit of a body's values, which would hide what the field costs.
                    n_fitting = _MAX_VALUES // _n_values(self._item(item, 0))
                    yield f"{label} {i}", [self._item(item, j) for j in range(min(n, n_fitting))]
            elif kind.get("type") == "object" and "properties" not in kind:
                n = factor * kind.get("maxProperties", _N_ITEMS)
                yield label, {str(i): 1 for i in range(n)}
                properties = {f"p{i}": {"type": "string"} for i in range(n // 4)}
                yield f"{label} as a schema", {"type": "object", "properties": properties}

    def _item(self, kind: dict[str, Any], i: int) -> Any:
        type_ = kind.get("type")
        if "enum" in kind or "const" in kind:
            return self.minimal(kind)
        if type_ == "string":
            return f"a{i}"
        if type_ in ("integer", "number"):
            return i % 300
        if type_ == "array":
            return [i % 300, 1]
        return self.minimal(kind) or {"id": i, "scale": 1}


def _n_values(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(_n_values, value.values()))
    return 1 + sum(map(_n_values, value)) if isinstance(value, list) else 1
