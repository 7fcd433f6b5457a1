"""WHAT IS KEPT: pages, and prefixes that several requests share."""

from woolly.cache.prefix import PrefixReport, PrefixStats

__all__ = ["PrefixReport", "PrefixStats"]
