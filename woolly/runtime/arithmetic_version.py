"""Version number of the arithmetic: processes with the same number compute the same bits."""

from __future__ import annotations

# Incremented when a code change alters a bit of any logit or sampled token, so that earlier results are not mixed
# with new ones.
ARITHMETIC_VERSION = 7
