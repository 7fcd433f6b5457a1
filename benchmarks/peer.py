"""llama.cpp as a server of measurements (servers.py says how it is asked), through llama-cpp-python's C API.

Run by versus.py and kl.py with the Python of an environment that has llama-cpp-python. It keeps the model loaded, with
one context for each setting that was asked for.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import Any

from servers import peak_mib, serve

try:
    import llama_cpp
except ImportError:
    llama_cpp = None

FLASH_ATTENTION = {"off": 0, "on": 1}
Row = tuple[int, int, int, bool]  # token, position, sequence, whether its logits are wanted


class Peer:
    """One model, and its contexts."""

    def __init__(self) -> None:
        self.contexts: dict[tuple[str, bool], Any] = {}
        self.model: Any = None

    def about(self) -> dict[str, Any]:
        """Version and build of the engine."""
        if llama_cpp is None:
            raise RuntimeError("llama_cpp cannot be imported")
        return {"version": llama_cpp.__version__, "system": llama_cpp.llama_print_system_info().decode().strip()}

    def load(self, model: str, threads: int, ctx: int, sequences: int, flash: str, unified: bool) -> dict[str, Any]:
        """Opens the model and computes one token."""
        llama_cpp.llama_backend_init()
        self._quiet = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self._quiet, None)
        self.threads, self.ctx, self.sequences = threads, ctx, sequences
        start = time.perf_counter()
        self.model = llama_cpp.llama_model_load_from_file(model.encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            raise RuntimeError(f"{model} cannot be loaded")
        context = self.context(flash, unified)
        self.decode(context, self.batch([(5, 0, 0, True)]))
        return {"seconds": time.perf_counter() - start}

    def prompt(self, n: int, flash: str, unified: bool) -> dict[str, Any]:
        """Seconds for a prompt of n tokens."""
        context = self.cleared(flash, unified)
        batch = self.batch([(10 + i % 1000, i, 0, i == n - 1) for i in range(n)])
        start = time.perf_counter()
        self.decode(context, batch)
        return {"seconds": time.perf_counter() - start}

    def generate(self, n: int, sequences: int, flash: str, unified: bool) -> dict[str, Any]:
        """Seconds for n tokens, one by one, of so many sequences at once."""
        context = self.cleared(flash, unified)
        batches = [self.batch([(10 + k % 1000, k, s, True) for s in range(sequences)]) for k in range(n)]
        start = time.perf_counter()
        for batch in batches:
            self.decode(context, batch)
        return {"seconds": time.perf_counter() - start}

    def logits(self, tokens: Sequence[int], file: str, flash: str, unified: bool) -> dict[str, Any]:
        """Writes the logits after each token to a file, as f32."""
        context = self.cleared(flash, unified)
        self.decode(context, self.batch([(token, i, 0, True) for i, token in enumerate(tokens)]))
        n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        address = ctypes.addressof(llama_cpp.llama_get_logits(context).contents)
        with open(file, "wb") as out:  # noqa: PTH123
            out.write((ctypes.c_float * (len(tokens) * n_vocab)).from_address(address))
        return {"n_vocab": n_vocab}

    def peak(self) -> dict[str, Any]:
        """Peak memory of this process."""
        return {"mib": peak_mib()}

    def context(self, flash: str, unified: bool) -> Any:
        """The context of one setting, made where there is none yet."""
        if (flash, unified) not in self.contexts:
            p = llama_cpp.llama_context_default_params()
            # A split cache gives each sequence its share of the context.
            p.n_ctx = self.ctx if unified else self.ctx * self.sequences
            p.n_batch, p.n_ubatch, p.n_seq_max = max(2048, self.ctx), 512, self.sequences
            p.n_threads = p.n_threads_batch = self.threads
            p.kv_unified, p.flash_attn_type = unified, FLASH_ATTENTION[flash]
            context = llama_cpp.llama_init_from_model(self.model, p)
            if not context:
                raise RuntimeError("the context cannot be made")
            self.contexts[flash, unified] = context
        return self.contexts[flash, unified]

    def cleared(self, flash: str, unified: bool) -> Any:
        """The context of one setting, empty."""
        context = self.context(flash, unified)
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        return context

    def batch(self, rows: Sequence[Row]) -> Any:
        """A batch of rows; made before the clock starts."""
        batch = llama_cpp.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, wanted
            batch.seq_id[i][0] = sequence
        return batch

    def decode(self, context: Any, batch: Any) -> None:
        """Computes a batch and frees it."""
        code = llama_cpp.llama_decode(context, batch)
        llama_cpp.llama_synchronize(context)
        llama_cpp.llama_batch_free(batch)
        if code:
            raise RuntimeError(f"llama_decode returned {code}")


if __name__ == "__main__":
    peer = Peer()
    serve({name: getattr(peer, name) for name in ("about", "load", "prompt", "generate", "logits", "peak")})
