"""Embeddings and scores of texts, computed between the steps of answers."""

from typing import TYPE_CHECKING

from woolly.lazy_imports import later

if TYPE_CHECKING:
    from woolly.engine.pooling.job import PoolingJob
    from woolly.engine.pooling.pooler import Pooler
    from woolly.engine.pooling.runner import PoolingRunner

__all__ = ["Pooler", "PoolingJob", "PoolingRunner"]

__getattr__ = later(
    __name__,
    {
        "runner": "PoolingRunner",
        "job": "PoolingJob",
        "pooler": "Pooler",
    },
)
