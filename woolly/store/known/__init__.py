"""The catalogue: names that people type, and the repositories on the hub that they mean."""

__all__: list[str] = []
