"""Server settings: the table, its checks and its sources."""

__all__: list[str] = []
