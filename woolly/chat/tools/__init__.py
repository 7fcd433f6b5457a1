"""Tools that a model may call, call formats, and grammars for calls."""

__all__: list[str] = []
