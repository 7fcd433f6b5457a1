"""Chat and text completions in OpenAI's format, for all dialects that use it."""

__all__: list[str] = []
