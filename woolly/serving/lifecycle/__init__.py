"""The life of a server: the application, its start and its end."""

__all__: list[str] = []
