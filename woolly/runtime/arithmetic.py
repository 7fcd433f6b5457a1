"""The number of the arithmetic, by which processes know whether they compute the same bits."""

from __future__ import annotations

# Incremented when a code change alters a bit of any logit or sampled token, so that earlier results are not mixed
# with new ones.
ARITHMETIC = 7
