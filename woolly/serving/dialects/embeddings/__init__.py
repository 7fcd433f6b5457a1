"""Embeddings, reranking and classification: bodies and replies shared by dialects."""

__all__: list[str] = []
