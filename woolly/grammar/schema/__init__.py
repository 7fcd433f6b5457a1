"""JSON schemas as grammars: keywords become facts about a value, facts become shapes, shapes become rules."""

__all__: list[str] = []
