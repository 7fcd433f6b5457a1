"""Tool calls: tools, call formats, and grammars for calls."""

__all__: list[str] = []
