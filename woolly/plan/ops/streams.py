"""Ops over several streams of one width, side by side in a row."""

from __future__ import annotations

from woolly.plan.ops.table import op
from woolly.plan.recorder import Handle, Recorder

__all__ = ["StreamOps"]


class StreamOps(Recorder):
    """What a model file says of streams."""

    @op(inputs=("x", "coefs"), attributes=("streams", "plus?"))
    def mix(self, x: Handle, coefs: Handle, *, streams: int, plus: float = 0.0) -> Handle:
        """Each new stream j the sum of the `streams` of x times coefs[j * streams + i] + plus."""
        n = coefs.width // max(1, streams)
        fits = streams >= 1 and x.width % streams == 0 and coefs.width == n * streams and n >= 1
        if not fits or x.value.rows != coefs.value.rows:
            self._fail(f"mix got {streams} streams in {x.width} columns and {coefs.width} coefficients")
        width = x.width // streams * n
        return self._step("mix", (x, coefs), x.value.rows, width, streams=streams, plus=float(plus))

    @op(inputs=("x", "like"), attributes=("least",))
    def match(self, x: Handle, like: Handle, *, least: float) -> Handle:
        """Each stream of x, as wide as `like`, brought to its mean square; one of less than `least` counts as that."""
        if x.width % like.width != 0 or x.value.rows != like.value.rows:
            self._fail(f"match got {x.value.rows} x {x.width} and {like.value.rows} x {like.width}")
        return self._step("match", (x, like), x.value.rows, x.width, least=float(least))

    @op(inputs=("x",), attributes=("deviations",))
    def peaks(self, x: Handle, *, deviations: float) -> Handle:
        """What each element has above the row's mean and `deviations` times its standard deviation; 0 if nothing."""
        return self._step("peaks", (x,), x.value.rows, x.width, deviations=float(deviations))
