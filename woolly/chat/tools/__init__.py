"""CALLS: tools that a model may call, the formats in which it does, and grammars that make it."""

__all__: list[str] = []
