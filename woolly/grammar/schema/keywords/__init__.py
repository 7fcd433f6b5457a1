"""Keywords of JSON schemas: a table entry gives the types a keyword applies to, and its alternatives."""

from woolly.grammar.schema.keywords import applicators, arrays, objects, scalars

__all__ = ["NEGATIVE", "POSITIVE"]

_MODULES = (applicators, scalars, arrays, objects)
POSITIVE = {name: entry for module in _MODULES for name, entry in module.POSITIVE.items()}
NEGATIVE = {name: entry for module in _MODULES for name, entry in module.NEGATIVE.items()}
