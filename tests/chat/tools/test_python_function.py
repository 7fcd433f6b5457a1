"""Tools from Python functions: names, descriptions and schemas from type hints and docstrings."""

import functools
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from woolly.chat import Tool
from woolly.errors import RequestError


class Place(BaseModel):
    city: str


def weather(city: str, unit: Literal["C", "F"] = "C", *, days: Annotated[int, Field(ge=1)] = 1) -> str:
    """Return the weather of a city.

    Args:
        city: Name of the city,
            with its country.
        days (int): Number of days.

    Returns:
        A sentence.
    """
    return f"{city} {unit} {days}"


def test_schema_and_descriptions_come_from_the_function():
    tool = Tool.of(weather)
    assert (tool.name, tool.description) == ("weather", "Return the weather of a city.")
    assert tool.schema == {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "city": {"description": "Name of the city, with its country.", "type": "string"},
            "unit": {"default": "C", "enum": ["C", "F"], "type": "string"},
            "days": {"default": 1, "description": "Number of days.", "minimum": 1, "type": "integer"},
        },
        "required": ["city"],
    }


def test_methods_and_nested_types_are_described():
    class Shop:
        def buy(self, place: Place, model_config: str = "", json: bool = False) -> None: ...

    schema = Tool.of(Shop().buy).schema
    assert list(schema["properties"]) == ["place", "model_config", "json"]
    assert schema["$defs"]["Place"]["required"] == ["city"]
    assert Tool.of(Shop().buy).description is None

    def none() -> None: ...

    assert Tool.of(none).schema == {"type": "object", "properties": {}, "additionalProperties": False}


def untyped(city): ...


def variadic(*cities: str): ...


def unknown(city: "Nowhere"): ...  # noqa: F821


def without_schema(city: functools.partial): ...


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (untyped, "tools has the function 'untyped', but its parameter city has no type hint; add one, such as str"),
        (variadic, r"its parameter \*cities: str has no name in a call; use named parameters"),
        (unknown, "its type hints cannot be resolved .*; or pass a mapping with its name and parameters"),
        (without_schema, "its parameters have no JSON schema"),
        ({}, "expected a Python function, or a mapping with the name of a function"),
    ],
)
def test_function_without_a_schema_is_rejected(function, said):
    with pytest.raises(RequestError, match=said):
        Tool.of(function)
