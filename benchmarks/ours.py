"""Woolly as a server of measurements (servers.py says how it is asked). Run by versus.py."""

from __future__ import annotations

import time
from typing import Any

from servers import peak_mib, serve

import woolly
from woolly.engine.bench import Bench, Work
from woolly.engine.load import load_model
from woolly.runtime import Options
from woolly.runtime.cpu import CpuProgram, kernel_level


class Ours:
    """One loaded model."""

    def about(self) -> dict[str, Any]:
        """Version and kernels of the engine."""
        return {"version": woolly.__version__, "system": f"kernels {kernel_level()}"}

    def load(self, model: str, threads: int, ctx: int, sequences: int) -> dict[str, Any]:
        """Opens the model, its tokenizer included as with the peer, and computes one token."""
        start = time.perf_counter()
        self.model = load_model(model, "cpu", Options(threads=threads))
        assert isinstance(self.model.program, CpuProgram)
        # The cache has as many tokens as the peer's.
        self.bench = Bench(self.model.program, [Work("generation", -(-ctx // sequences), sequences)])
        self.bench.first_token()
        return {"seconds": time.perf_counter() - start}

    def prompt(self, n: int) -> dict[str, Any]:
        """Seconds for a prompt of n tokens."""
        return self._run(Work("prompt", n))

    def generate(self, n: int, sequences: int) -> dict[str, Any]:
        """Seconds for n tokens, one by one, of so many sequences at once, and the bytes that this reads."""
        return self._run(Work("generation", n, sequences))

    def peak(self) -> dict[str, Any]:
        """Peak memory of this process."""
        return {"mib": peak_mib()}

    def _run(self, work: Work) -> dict[str, Any]:
        return {"seconds": self.bench.run(work), "n_bytes": self.bench.n_bytes(work)}


if __name__ == "__main__":
    ours = Ours()
    serve({name: getattr(ours, name) for name in ("about", "load", "prompt", "generate", "peak")})
