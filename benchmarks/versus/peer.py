"""llama.cpp as a server of measurements (servers.py says how it is asked), through llama-cpp-python's C API.

Run by versus.py and kl.py with the Python of an environment that has llama-cpp-python. It keeps the model loaded, with
one context for each setting that was asked for.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.versus.process import peak_mib, serve

try:
    import llama_cpp
except ImportError:
    llama_cpp = None

FLASH_ATTENTION = {"off": 0, "on": 1}


class Key(NamedTuple):
    """Options that identify a context."""

    tokens: int  # of each sequence
    sequences: int
    depth: int
    flash: str
    unified: bool
    ubatch: int


Row = tuple[int, int, int, bool]  # token, position, sequence, whether its logits are wanted


class Peer:
    """One model, and its contexts."""

    def __init__(self) -> None:
        self.contexts: dict[Key, Any] = {}
        self.filled: set[Key] = set()  # contexts whose depth is in their cache
        self.model: Any = None

    def about(self) -> dict[str, Any]:
        """Version and build of the engine."""
        if llama_cpp is None:
            raise RuntimeError("llama_cpp cannot be imported")
        return {"version": llama_cpp.__version__, "system": llama_cpp.llama_print_system_info().decode().strip()}

    def load(
        self,
        model: str,
        threads: int,
        ctx: int,
        sequences: int,
        flash: str,
        unified: bool,
        ubatch: int = 512,
        backend: str = "cpu",
    ) -> dict[str, Any]:
        """Opens the model and computes one token. Any other backend than "cpu" is the GPU that it was built for."""
        llama_cpp.llama_backend_init()
        self._quiet = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self._quiet, None)
        self.threads, self.ctx = threads, ctx
        start = time.perf_counter()
        settings = llama_cpp.llama_model_default_params()
        settings.n_gpu_layers = 0 if backend == "cpu" else 999
        self.model = llama_cpp.llama_model_load_from_file(model.encode(), settings)
        if not self.model:
            raise RuntimeError(f"{model} cannot be loaded")
        context = self.context(Key(ctx, sequences, 0, flash, unified, ubatch))
        self.decode(context, self.batch([(5, 0, 0, True)]))
        return {"seconds": time.perf_counter() - start}

    def prompt(self, n: int, flash: str, unified: bool, ubatch: int = 512, depth: int = 0) -> dict[str, Any]:
        """Seconds for a prompt of n tokens."""
        key = Key(depth + n, 1, depth, flash, unified, ubatch)
        context = self.at_depth(key)
        batch = self.batch([(token_at(i, 0), i, 0, i == depth + n - 1) for i in range(depth, depth + n)])
        start = time.perf_counter()
        self.decode(context, batch)
        return {"seconds": time.perf_counter() - start}

    def generate(
        self, n: int, sequences: int, flash: str, unified: bool, ubatch: int = 512, depth: int = 0
    ) -> dict[str, Any]:
        """Seconds for n tokens, one by one, of so many sequences at once."""
        key = Key(depth + n, sequences, depth, flash, unified, ubatch)
        context = self.at_depth(key)
        batches = [
            self.batch([(token_at(k, s), k, s, True) for s in range(sequences)]) for k in range(depth, depth + n)
        ]
        start = time.perf_counter()
        for batch in batches:
            self.decode(context, batch)
        return {"seconds": time.perf_counter() - start}

    def first_token(self, text: str, flash: str, unified: bool, ubatch: int = 512) -> dict[str, Any]:
        """Seconds from a text to the text of the first token after it, the likeliest one."""
        data = text.encode()
        # As large for every text of so many words: a context is made once, and its memory paid for before it counts.
        context = self.at_depth(Key(8 * len(text.split()), 1, 0, flash, unified, ubatch))
        vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        sampler = llama_cpp.llama_sampler_init_greedy()
        ids = (llama_cpp.llama_token * len(data))()
        piece = ctypes.create_string_buffer(64)
        start = time.perf_counter()
        n = llama_cpp.llama_tokenize(vocabulary, data, len(data), ids, len(ids), True, True)
        self.decode(context, self.batch([(ids[i], i, 0, i == n - 1) for i in range(n)]))
        token = llama_cpp.llama_sampler_sample(sampler, context, -1)
        llama_cpp.llama_token_to_piece(vocabulary, token, piece, len(piece), 0, True)
        seconds = time.perf_counter() - start
        llama_cpp.llama_sampler_free(sampler)
        return {"seconds": seconds, "n_tokens": n}

    def logits(self, tokens: Sequence[int], file: str, flash: str, unified: bool) -> dict[str, Any]:
        """Writes the logits after each token to a file, as f32."""
        context = self.at_depth(Key(self.ctx, 1, 0, flash, unified, 512))
        self.decode(context, self.batch([(token, i, 0, True) for i, token in enumerate(tokens)]))
        n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        address = ctypes.addressof(llama_cpp.llama_get_logits(context).contents)
        with open(file, "wb") as out:  # noqa: PTH123
            out.write((ctypes.c_float * (len(tokens) * n_vocab)).from_address(address))
        return {"n_vocab": n_vocab}

    def peak(self) -> dict[str, Any]:
        """Peak memory of this process."""
        return {"mib": peak_mib()}

    def forget(self, flash: str, unified: bool, ubatch: int, n: int, sequences: int, depth: int) -> dict[str, Any]:
        """Frees a context that is not needed any more."""
        key = Key(depth + n, sequences, depth, flash, unified, ubatch)
        if key in self.contexts:
            llama_cpp.llama_free(self.contexts.pop(key))
            self.filled.discard(key)
        return {}

    def context(self, key: Key) -> Any:
        """The context of one setting, made where there is none yet."""
        if key not in self.contexts:
            p = llama_cpp.llama_context_default_params()
            # Its cache is cut into pieces of 256; a split one has such pieces for each sequence.
            p.n_ctx = padded(key.tokens * key.sequences) if key.unified else padded(key.tokens) * key.sequences
            p.n_ubatch, p.n_batch = key.ubatch, max(2048, p.n_ctx)
            p.n_seq_max = key.sequences
            p.n_threads = p.n_threads_batch = self.threads
            p.kv_unified, p.flash_attn_type = key.unified, FLASH_ATTENTION[key.flash]
            context = llama_cpp.llama_init_from_model(self.model, p)
            if not context:
                raise RuntimeError("the context cannot be made")
            self.contexts[key] = context
        return self.contexts[key]

    def at_depth(self, key: Key) -> Any:
        """The context of one setting, with nothing in its cache but the depth."""
        context = self.context(key)
        memory = llama_cpp.llama_get_memory(context)
        if key.depth and key in self.filled:
            for s in range(key.sequences):
                llama_cpp.llama_memory_seq_rm(memory, s, key.depth, -1)
            return context
        llama_cpp.llama_memory_clear(memory, True)
        for s in range(key.sequences):
            for first in range(0, key.depth, key.ubatch):
                last = min(first + key.ubatch, key.depth)
                self.decode(context, self.batch([(token_at(i, s), i, s, False) for i in range(first, last)]))
        self.filled.add(key)
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


def token_at(position: int, sequence: int) -> int:
    """Return the token of woolly/measure/bench.py, which cannot be imported here."""
    return 10 + (position + 31 * sequence) % 1000


def padded(n: int) -> int:
    """The next multiple of 256."""
    return -(-n // 256) * 256


REQUESTS = ("about", "load", "prompt", "generate", "first_token", "logits", "peak", "forget")

if __name__ == "__main__":
    peer = Peer()
    serve({name: getattr(peer, name) for name in REQUESTS})
