"""Settings of a server: the table, its checks, and the files they come from."""

__all__: list[str] = []
