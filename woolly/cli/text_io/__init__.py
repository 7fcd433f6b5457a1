"""Files of texts and of embeddings, for `woolly embed` and `woolly rerank`."""

__all__: list[str] = []
