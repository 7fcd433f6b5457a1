"""KV cache: pages, prefix index, recurrent slots, window pages and the disk tier."""

from typing import TYPE_CHECKING

from woolly.later import later

if TYPE_CHECKING:
    from woolly.cache.prefix import PrefixReport, PrefixStats
    from woolly.cache.tier import DiskStats, DiskTier

__all__ = ["DiskStats", "DiskTier", "PrefixReport", "PrefixStats"]

__getattr__ = later(
    __name__,
    {
        "prefix": "PrefixReport PrefixStats",
        "tier": "DiskStats DiskTier",
    },
)
