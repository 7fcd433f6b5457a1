"""Benchmarks, rooflines, diagnosis, perplexity and evaluation."""

__all__: list[str] = []
