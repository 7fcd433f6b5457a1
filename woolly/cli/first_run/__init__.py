"""First answer: models that this machine could run, and what to try next."""

__all__: list[str] = []
