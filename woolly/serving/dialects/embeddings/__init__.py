"""Request bodies and replies of embedding, reranking and classification, shared by dialects."""

__all__: list[str] = []
