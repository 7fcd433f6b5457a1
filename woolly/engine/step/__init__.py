"""One step of the engine: which rows run, how they run, what is kept of them."""

__all__: list[str] = []
