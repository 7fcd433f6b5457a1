"""Ops over several residual streams of one width, concatenated in a row."""

from __future__ import annotations

from woolly.plan.ops.table import op
from woolly.plan.recorder import Handle, Recorder


class ResidualStreamOps(Recorder):
    """Residual-stream ops of the tracer."""

    @op(inputs=("x", "coefs"), attributes=("streams", "plus?"), by_row=True)
    def mix_streams(self, x: Handle, coefs: Handle, *, streams: int, plus: float = 0.0) -> Handle:
        """Return new streams: stream j is the sum over i of x[i] * (coefs[j * streams + i] + plus)."""
        n = coefs.width // max(1, streams)
        fits = streams >= 1 and x.width % streams == 0 and coefs.width == n * streams and n >= 1
        if not fits or x.value.rows != coefs.value.rows:
            self._fail(f"mix_streams got {streams} streams in {x.width} columns and {coefs.width} coefficients")
        width = x.width // streams * n
        return self._step("mix_streams", (x, coefs), x.value.rows, width, streams=streams, plus=float(plus))

    @op(inputs=("x",), weights=("scale", "base"), attributes=("streams", "iterations", "eps"), by_row=True)
    def hyper_connections(
        self, x: Handle, scale: str, base: str, *, streams: int, iterations: int, eps: float
    ) -> Handle:
        """Return the coefficients of hyper-connections: stream-to-layer, layer-to-stream and stream-to-stream.

        x has n, n and n * n logits. Each part is multiplied by a scale, and the base is added. The first n become
        sigmoid + eps, the second n 2 * sigmoid. The last n * n are a matrix: softmax + eps over row i (stream i to each
        stream), then Sinkhorn normalization, which divides columns, then `iterations` - 1 times rows and columns, by
        their sum + eps. The result has the matrix transposed, as `mix_streams` expects. If x has only n logits, they
        are the first part.
        """
        whole = x.width == streams * (streams + 2)
        if streams < 1 or (not whole and x.width != streams) or (whole and iterations < 1) or not eps >= 0:
            self._fail(f"hyper_connections got {x.width} logits for {streams} streams and {iterations} iterations")
        weights = self._vector(scale), self._vector(base)
        if [w.shape[0] for w in weights] != [3 if whole else 1, x.width]:
            self._fail(f"{weights[0].name} and {weights[1].name} do not fit {x.width} logits")
        return self._step(
            "hyper_connections",
            (x,),
            x.value.rows,
            x.width,
            weights,
            streams=streams,
            iterations=iterations,
            eps=float(eps),
        )

    @op(inputs=("x", "like"), attributes=("least",), by_row=True)
    def match_rms(self, x: Handle, like: Handle, *, least: float) -> Handle:
        """Rescale each stream of x to the mean square of `like`. `least` is the minimum of the divisor."""
        if x.width % like.width != 0 or x.value.rows != like.value.rows:
            self._fail(f"match_rms got {x.value.rows} x {x.width} and {like.value.rows} x {like.width}")
        return self._step("match_rms", (x, like), x.value.rows, x.width, least=float(least))

    @op(inputs=("x",), attributes=("deviations",), by_row=True)
    def gaussian_topk(self, x: Handle, *, deviations: float) -> Handle:
        """Return relu(x - (mean + deviations * standard deviation)), with the statistics of each row."""
        return self._step("gaussian_topk", (x,), x.value.rows, x.width, deviations=float(deviations))
