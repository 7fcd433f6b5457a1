"""What `woolly launch` starts: coding agents, and a server for them."""

__all__: list[str] = []
