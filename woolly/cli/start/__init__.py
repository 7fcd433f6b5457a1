"""What a first answer needs: what this machine could run, and what to try next."""

__all__: list[str] = []
