"""Who asks, how much each may ask, and what each has used."""

__all__: list[str] = []
