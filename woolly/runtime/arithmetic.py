"""The number of the arithmetic, by which processes know whether they compute the same bits."""

from __future__ import annotations

# Raised when a change of the code changes a bit of any logit or of any choice: what was computed before is then not
# taken for what is computed now.
ARITHMETIC = 7
