"""How threads share one engine: the thread that steps it, and those that wait for tokens."""

__all__: list[str] = []
