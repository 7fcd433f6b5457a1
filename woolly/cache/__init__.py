"""KV cache: pages, prefix index, recurrent slots, window pages and the disk tier."""

from typing import TYPE_CHECKING

from woolly.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from woolly.cache.disk_tier import DiskStats, DiskTier
    from woolly.cache.prefix import PrefixReport, PrefixStats

__all__ = ["DiskStats", "DiskTier", "PrefixReport", "PrefixStats"]

__getattr__ = lazy_getattr(
    __name__,
    {
        "prefix": "PrefixReport PrefixStats",
        "disk_tier": "DiskStats DiskTier",
    },
)
