"""Hyper-connections: several residual streams around a layer, mixed by coefficients that each row computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from woolly.errors import UnsupportedError
from woolly.gguf.keys import Keys
from woolly.plan import Handle, Tracer

_MAX_STREAMS, _MAX_ITERATIONS = 16, 1000


@dataclass(frozen=True)
class Streams:
    """Parameters of hyper-connections."""

    count: int
    iterations: int  # Sinkhorn iterations to make the mixing matrix doubly stochastic
    eps: float  # epsilon of the iterations
    norm_eps: float


def read_streams(keys: Keys, norm_eps: float) -> Streams:
    """Read the parameters."""
    count, iterations = (keys.positive(f"hyper_connection.{name}") for name in ("count", "sinkhorn_iterations"))
    if count > _MAX_STREAMS or iterations > _MAX_ITERATIONS:
        raise UnsupportedError(
            f"{keys.architecture} models support at most {_MAX_STREAMS} streams and {_MAX_ITERATIONS} Sinkhorn"
            f" iterations; the file has {count} and {iterations}"
        )
    return Streams(count, iterations, keys.number("hyper_connection.epsilon"), norm_eps)


def copies(p: Tracer, x: Handle, streams: Streams) -> Handle:
    """Return equal streams."""
    out = x
    for _ in range(streams.count - 1):
        out = p.concat(out, x)
    return out


def mean_stream(p: Tracer, x: Handle, streams: Streams) -> Handle:
    """Return the mean of the streams."""
    first, *others = p.split(x, *(x.width // streams.count,) * streams.count)
    for other in others:
        first = first + other
    return first * (1 / streams.count)


def hyper_connected(p: Tracer, x: Handle, name: str, streams: Streams, layer: Callable[[Handle], Handle]) -> Handle:
    """Return the streams after a layer: coefficients for stream to layer, layer to stream, and stream to stream."""
    n, eps = streams.count, streams.norm_eps
    logits = p.linear(p.rms_norm(x, eps=eps), f"hc_{name}_fn", width=n * (n + 2))
    shares = p.hyper_connections(
        logits, f"hc_{name}_scale", f"hc_{name}_base", streams=n, iterations=streams.iterations, eps=streams.eps
    )
    into, out, among = p.split(shares, n, n, n * n)
    y = layer(p.rms_norm(p.mix_streams(x, into, streams=n), f"{name}_norm", eps=eps))
    return p.mix_streams(x, among, streams=n) + p.mix_streams(y, out, streams=1)
