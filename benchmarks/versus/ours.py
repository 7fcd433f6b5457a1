"""Woolly as a server of measurements (servers.py says how it is asked). Run by versus.py."""

from __future__ import annotations

import time
from typing import Any

import woolly
from benchmarks.versus.process import peak_mib, serve
from woolly.engine import Engine
from woolly.engine.loading.load import context_limit, load_model
from woolly.measure.bench import Bench, Workload
from woolly.runtime import Options
from woolly.sampling import SamplingParams


class Ours:
    """One loaded model, with a cache for each work: what a work finds cached, it left there itself."""

    def __init__(self) -> None:
        self.benches: dict[Workload, Bench] = {}
        self.engine: Engine | None = None

    def about(self) -> dict[str, Any]:
        """Version of the engine."""
        return {"version": woolly.__version__}

    def load(self, model: str, threads: int, ctx: int, sequences: int, backend: str = "cpu") -> dict[str, Any]:
        """Opens the model, its tokenizer included as with the peer, and computes one token."""
        start = time.perf_counter()
        self.model = load_model(model, backend, Options(threads=threads))
        # The cache has as many tokens as the peer's.
        Bench(self.model.program, [Workload("generation", -(-ctx // sequences), sequences)]).first_token()
        seconds = time.perf_counter() - start
        about = self.model.program.about
        return {
            "seconds": seconds,
            "system": about.place,
            "bandwidth_gbs": None if about.device_bandwidth is None else about.device_bandwidth / 1e9,
        }

    def prompt(self, n: int, depth: int = 0) -> dict[str, Any]:
        """Seconds for a prompt of n tokens."""
        return self._run(Workload("prompt", n, 1, depth))

    def generate(self, n: int, sequences: int, depth: int = 0) -> dict[str, Any]:
        """Seconds for n tokens, one by one, of so many sequences at once, and the bytes that this reads."""
        return self._run(Workload("generation", n, sequences, depth))

    def first_token(self, text: str) -> dict[str, Any]:
        """Seconds from a text to the text of the first token after it, the likeliest one."""
        if self.engine is None:
            ctx = min(len(text) + 64, context_limit(self.model.file, self.model.program.plan))
            self.engine = Engine(self.model.program, self.model.tokenizer, ctx=ctx)
        start = time.perf_counter()
        ids = self.model.tokenizer.encode(text)
        sequence = self.engine.add(
            self.engine.new_request(ids, SamplingParams(max_tokens=1, temperature=0, ignore_eos=True))
        )
        while not self.engine.is_idle:
            self.engine.step()
        self.model.tokenizer.decode(sequence.output)
        seconds = time.perf_counter() - start
        if not sequence.output:
            raise RuntimeError(f"a prompt of {len(ids)} tokens was not answered")
        return {"seconds": seconds, "n_tokens": len(ids)}

    def peak(self) -> dict[str, Any]:
        """Peak memory of this process."""
        return {"mib": peak_mib()}

    def _run(self, work: Workload) -> dict[str, Any]:
        if work not in self.benches:
            self.benches[work] = Bench(self.model.program, [work])
        bench = self.benches[work]
        return {"seconds": bench.run(work), "n_bytes": bench.n_bytes(work)}


if __name__ == "__main__":
    ours = Ours()
    serve({name: getattr(ours, name) for name in ("about", "load", "prompt", "generate", "first_token", "peak")})
