"""The Identity of bits: two programs with one identity give one answer, byte for byte."""

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

# Tokens of the probe: more than a page, so that the first and the second page are read together. Pages of zeros before
# them make the context long enough that attention splits it and merges the partial results.
_N_TOKENS = 40
_N_PAST = 288
_N_ROWS = 8  # at the end, whose logits are hashed and sampled from

# One chain for each function whose bits could depend on the machine: powers, logarithms, exponentials.
_CHAINS: tuple[dict[str, Any], ...] = (
    {"seed": 1, "temperature": 0.8},
    {"seed": 2, "temperature": 1.0, "typical_p": 0.9, "top_k": 0},
    {"seed": 3, "mirostat": 1},
    {"seed": 4, "mirostat": 2},
    {"seed": 5, "temperature": 1.0, "dynatemp_range": 0.5},
)


@dataclass(frozen=True)
class Identity:
    """Identity of an answer's bits: everything that determines them, and the digest of a probe run.

    The kernel level, threads, chunks and other requests are not in it: they do not change a bit. A level that does,
    such as `scalar` on x86-64, whose sums round twice where others fuse, differs in its probe.
    """

    arithmetic: int  # ARITHMETIC of the code
    model: str  # SHA-256 over its files, and over those of its adapters
    backend: str  # "cpu" (also GPUs with its bits), "reference", or GPU and architecture: "cuda sm_90"
    kv_type: str
    probe: str  # digest of logits and of tokens sampled from them; empty for a model that generates no text

    @property
    def id(self) -> str:
        """Return a short name, equal for equal identities."""
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
        """Return the identity of the answers' bits; the first call runs a probe between two steps.

        Processes with one identity give one answer to one request, byte for byte.
        """
        with self._identifying:
            if self._identity is None:
                loaded = self._loaded[0]
                files = [loaded.file, *(adapter.file for adapter in loaded.adapters)]
                files += [] if loaded.tower is None else [loaded.tower.file]
                digest = _digest(files)  # while the engine goes on
                tower = "" if loaded.tower is None else loaded.tower.bits
                self._identity = self.driver.call(lambda engine: _proved(engine.program, digest, tower))
            return self._identity

    @property
    def known_identity(self) -> Identity | None:
        """Return the identity if it was computed before."""
        return self._identity


def identity_of(program: Program, file: GGUFFile, adapters: Sequence[GGUFFile] = ()) -> Identity:
    """Return the identity of a program, after a run of 40 tokens. The files are read once, and later only if changed.

    No other run may use the program meanwhile.
    """
    return _proved(program, _digest([file, *adapters]))


def _digest(files: Sequence[GGUFFile]) -> str:
    """Return the digest of files, and of metadata that override theirs."""
    digest = digest_of([path for one in files for path in one.paths])
    given = [text for one in files if isinstance(one.metadata, Overlay) for text in one.metadata.texts]
    return digest if not given else hashlib.sha256("\0".join([digest, *given]).encode()).hexdigest()


def _proved(program: Program, digest: str, tower: str = "") -> Identity:
    """Return the identity; `tower` identifies the bits of the encoder rows."""
    about = program.about
    bits = about.bits if tower in ("", about.bits) else f"{about.bits}, tower {tower}"
    return Identity(ARITHMETIC_VERSION, digest, bits, about.kv_type, _probe(program))


def device_bytes(engine: Engine) -> int | None:
    """Return the bytes of a model on its GPUs: weights, cache and values; None if the CPU computes all of it."""
    program, state, shares = engine.program, engine.state, engine.program.about.shares
    if not program.about.device:
        return None
    if shares and isinstance(state, runtime.SplitState):  # the CPU's memory is reported elsewhere
        on_gpus = [(share, part) for share, part in zip(shares, state.parts, strict=True) if share.device != "cpu"]
        return sum(share.weights + part.n_bytes + share.values for share, part in on_gpus)
    return program.weight_stats().n_bytes + engine.state.n_bytes + program.about.arena_bytes


def compute_rate(program: Program) -> float:
    """Return the tokens per second at which a program computes a short prompt; 0 for a model that generates no text.

    A run before it, as `identity_of` makes one, has packed the weights.
    """
    if program.plan.result != "logits":
        return 0.0
    start = time.perf_counter()
    tokens, _ = _run(program)
    return len(tokens) / max(1e-9, time.perf_counter() - start)


def _run(program: Program) -> tuple[list[int], npt.NDArray[np.float32]]:
    """Runs the tokens of the probe and returns them with the logits of the last rows."""
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
        with suppress(
            ModelError
        ):  # logits that are not finite: a request gets that error, the identity does not need it
            digest.update(np.array([sampler.next(row).token for row in logits], np.int32).tobytes())
    return digest.hexdigest()
