"""Names of models as Ollama's clients have them: a name without a tag means `:latest`."""

from __future__ import annotations

__all__ = ["tagged"]


def tagged(name: str) -> str:
    """Returns the name as lists show it. Clients look for the name that they ask for, or for it and a colon."""
    return name if ":" in name else f"{name}:latest"
