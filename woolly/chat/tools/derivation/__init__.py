"""DERIVATION: formats of calls, read from what a chat template renders."""

__all__: list[str] = []
