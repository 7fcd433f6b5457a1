"""Derivation of call formats from rendered chat templates."""

__all__: list[str] = []
