"""Evaluation: accuracy on questions with known answers, and comparison of two models."""

__all__: list[str] = []
