"""Embedding and scoring of texts, in batches between the steps of generating requests."""

from typing import TYPE_CHECKING

from woolly.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from woolly.engine.pooling.job import PoolingJob
    from woolly.engine.pooling.pooler import Pooler
    from woolly.engine.pooling.runner import PoolingRunner

__all__ = ["Pooler", "PoolingJob", "PoolingRunner"]

__getattr__ = lazy_getattr(
    __name__,
    {
        "runner": "PoolingRunner",
        "job": "PoolingJob",
        "pooler": "Pooler",
    },
)
