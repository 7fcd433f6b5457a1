"""HOW OFTEN RIGHT: rows of questions answered and judged, and two models compared on the same rows."""

__all__: list[str] = []
