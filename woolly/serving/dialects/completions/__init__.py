"""COMPLETIONS: chat and text completions in OpenAI's shapes, for the dialects that reply in them."""

__all__: list[str] = []
