"""MEANING: bodies and replies of embeddings, reranking and classification that several dialects share."""

__all__: list[str] = []
