"""Bit identity: programs with the same identity give bit-identical answers."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from woolly import runtime
from woolly.errors import ModelError
from woolly.gguf.overlay import Overlay
from woolly.runtime import ARITHMETIC_VERSION, Batch, PortableState, Program, pages_for
from woolly.sampling import SamplingParams
from woolly.sampling.sampler import Sampler
from woolly.store.file_digest import digest_of

if TYPE_CHECKING:
    from woolly.engine import Engine, EngineDriver, LoadedModel
    from woolly.gguf import GGUFFile

# Tokens of the probe run: more than a page, so that it reads two pages. The zero pages before the tokens make the
# context long enough for split attention, which merges partial results.
_N_TOKENS = 40
_N_PAST = 288
_N_ROWS = 8  # last rows, whose logits are hashed and sampled

# A sampler chain for each function whose bits could depend on the machine: powers, logarithms, exponentials.
_CHAINS: tuple[dict[str, Any], ...] = (
    {"seed": 1, "temperature": 0.8},
    {"seed": 2, "temperature": 1.0, "typical_p": 0.9, "top_k": 0},
    {"seed": 3, "mirostat": 1},
    {"seed": 4, "mirostat": 2},
    {"seed": 5, "temperature": 1.0, "dynatemp_range": 0.5},
)


@dataclass(frozen=True)
class Identity:
    """Everything that determines the bits of an answer, and the digest of a probe run.

    Kernel level, threads, chunk size and concurrent requests are excluded because they do not change the bits. A kernel
    level that changes the bits, such as `scalar` on x86-64, which rounds instead of fusing multiply-adds, changes the
    probe.
    """

    arithmetic: int  # ARITHMETIC of the code
    model: str  # SHA-256 of the files of model and adapters
    backend: str  # "cpu" (also bit-identical GPUs), "reference", or GPU and architecture: "cuda sm_90"
    kv_type: str
    probe: str  # digest of logits and of sampled tokens; empty for a model that generates no text

    @property
    def id(self) -> str:
        """Short name, equal for equal identities."""
        facts = (str(self.arithmetic), self.model, self.backend, self.kv_type, self.probe)
        return f"w{self.arithmetic}-{hashlib.blake2b(chr(0).join(facts).encode(), digest_size=12).hexdigest()}"

    def __str__(self) -> str:
        return self.id


class BitIdentityMixin:
    """Identity methods of LLM. Thread-safe."""

    driver: EngineDriver
    _loaded: list[LoadedModel]
    _identity: Identity | None = None
    _identifying: threading.Lock

    @property
    def place(self) -> str:
        """Device, such as "NVIDIA H200, sm_90" or "CPU, avx2, 8 threads"."""
        return self.driver.engine.program.about.place

    def identity(self) -> Identity:
        """Return the bit identity of the answers; the first call runs a probe between two steps.

        Processes with the same identity give bit-identical answers to the same request.
        """
        with self._identifying:
            if self._identity is None:
                loaded = self._loaded[0]
                files = [loaded.file, *(adapter.file for adapter in loaded.adapters)]
                files += [] if loaded.tower is None else [loaded.tower.file]
                digest = _digest(files)  # computed while the engine runs
                tower = "" if loaded.tower is None else loaded.tower.bits
                self._identity = self.driver.call(lambda engine: _proved(engine.program, digest, tower))
            return self._identity

    @property
    def known_identity(self) -> Identity | None:
        """Identity, if it has been computed."""
        return self._identity


def identity_of(program: Program, file: GGUFFile, adapters: Sequence[GGUFFile] = ()) -> Identity:
    """Return the identity of a program after a probe run of 40 tokens.

    Files are read again only if they have changed. No other run may use the program during this call.
    """
    return _proved(program, _digest([file, *adapters]))


def _digest(files: Sequence[GGUFFile]) -> str:
    """Return the digest of files and of overridden metadata."""
    digest = digest_of([path for one in files for path in one.paths])
    given = [text for one in files if isinstance(one.metadata, Overlay) for text in one.metadata.texts]
    return digest if not given else hashlib.sha256("\0".join([digest, *given]).encode()).hexdigest()


def _proved(program: Program, digest: str, tower: str = "") -> Identity:
    """Return the identity. `tower` identifies the bits of the encoder rows."""
    about = program.about
    bits = about.bits if tower in ("", about.bits) else f"{about.bits}, tower {tower}"
    return Identity(ARITHMETIC_VERSION, digest, bits, about.kv_type, _probe(program))


def device_bytes(engine: Engine) -> int | None:
    """Return the GPU memory of a model in bytes: weights, cache and values. Return None if it runs on the CPU only."""
    program, state, shares = engine.program, engine.state, engine.program.about.shares
    if not program.about.device:
        return None
    if shares and isinstance(state, runtime.SplitState):  # CPU memory is reported elsewhere
        on_gpus = [(share, part) for share, part in zip(shares, state.parts, strict=True) if share.device != "cpu"]
        return sum(share.weights + part.n_bytes + share.values for share, part in on_gpus)
    return program.weight_stats().n_bytes + engine.state.n_bytes + program.about.arena_bytes


def compute_rate(program: Program) -> float:
    """Return the prefill rate of a short prompt in tokens per second, or 0 for a model that generates no text.

    A previous run, such as the probe of `identity_of`, must have packed the weights.
    """
    if program.plan.result != "logits":
        return 0.0
    start = time.perf_counter()
    tokens, _ = _run(program)
    return len(tokens) / max(1e-9, time.perf_counter() - start)


def _run(program: Program) -> tuple[list[int], npt.NDArray[np.float32]]:
    """Run the probe; return its tokens and the logits of the last rows."""
    plan = program.plan
    n_tokens = min(_N_TOKENS, program.max_rows)
    tokens = [(i * 7919 + 13) % plan.n_tokens for i in range(n_tokens)]
    n_pages, has_slots = pages_for(_N_PAST + n_tokens), bool(plan.slots)
    state = program.new_state(n_pages, 2 if has_slots else 0)
    n_past, slots = 0, [(-1, 0)]
    if isinstance(state, PortableState):
        n_past, slots = _N_PAST, [(0, 1)]
        for page in range(pages_for(n_past)):
            for table, n_bytes in enumerate(state.page_sizes):
                state.write_page(page, np.zeros(n_bytes, np.uint8), table)
        if has_slots:
            state.write_slot(0, np.zeros(state.slot_bytes, np.uint8))
    batch = Batch.of(
        [(tokens, n_past, range(n_pages))],
        range(max(0, n_tokens - _N_ROWS), n_tokens),
        slots=slots if has_slots else None,
    )
    return tokens, program.run(batch, state).copy()


def _probe(program: Program) -> str:
    if program.plan.result != "logits":
        return ""
    tokens, logits = _run(program)
    digest = hashlib.blake2b(logits.tobytes(), digest_size=16)
    for chain in _CHAINS:
        sampler = Sampler(SamplingParams(**chain), None, tokens)
        with suppress(ModelError):  # a request reports non-finite logits; the identity ignores them
            digest.update(np.array([sampler.next(row).token for row in logits], np.int32).tobytes())
    return digest.hexdigest()
