"""Files of texts and of vectors, for `woolly embed` and `woolly rerank`."""

__all__: list[str] = []
