"""MEASUREMENT: benchmarks, rooflines, diagnosis, perplexity, evaluation."""

__all__: list[str] = []
