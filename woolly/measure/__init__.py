"""HOW FAST, HOW GOOD: benchmarks, bounds, diagnosis, perplexity."""

__all__: list[str] = []
