"""Files of texts and embeddings, for `woolly embed` and `woolly rerank`."""

__all__: list[str] = []
