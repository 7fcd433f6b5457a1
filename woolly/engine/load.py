"""Loading: from a file to a program that an engine can run, and how large its cache may be."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from woolly.engine.windows import free_bytes
from woolly.errors import ModelError, RequestError
from woolly.gguf import GGUFFile, open_gguf
from woolly.models import Keys, trace
from woolly.plan import Plan
from woolly.runtime import PAGE_SIZE, Options, Program, choose
from woolly.store import resolve
from woolly.text import Tokenizer

__all__ = ["LoadedModel", "available_memory", "context_limit", "default_ctx", "default_kv_tokens", "load_model"]

# Where the file allows more, a context is taken that fits small machines; `ctx=` asks for another.
DEFAULT_CTX = 8192

# The cache holds up to so many contexts where that takes at most this share of the memory that is available.
_MOST_CONTEXTS = 4
_MEMORY_SHARE = 0.1


@dataclass(frozen=True)
class LoadedModel:
    """A program with the file that it reads weights from."""

    path: Path
    file: GGUFFile
    tokenizer: Tokenizer
    program: Program

    def close(self) -> None:
        """Ends the work on its weights, then drops the file."""
        self.program.close()
        self.file.close()


def load_model(model: str | os.PathLike[str], backend: str, options: Options) -> LoadedModel:
    """Opens a GGUF file, by path or by the name under which it was pulled."""
    path = resolve(model)
    file = open_gguf(path)
    program: Program | None = None
    try:
        plan = trace(file)
        program = choose(backend).compile(plan, file.tensors, options)
        program.prepare()  # while the tokenizer is built
        tokenizer = Tokenizer.from_metadata(file.metadata)
        if tokenizer.n_vocab != plan.n_vocab:
            raise ModelError(
                f"{path}: the vocabulary has {tokenizer.n_vocab} tokens, but the model computes {plan.n_vocab} logits"
            )
        return LoadedModel(path, file, tokenizer, program)
    except BaseException:
        if program is not None:
            program.close()
        file.close()
        raise


def context_limit(file: GGUFFile, plan: Plan) -> int:
    """The longest context that the model was made for."""
    return Keys(file.metadata, plan.architecture).positive("context_length")


def default_ctx(file: GGUFFile, plan: Plan, ctx: int | None) -> int:
    """The context asked for, checked against the model's limit, or the usual one."""
    limit = context_limit(file, plan)
    if ctx is None:
        return min(limit, DEFAULT_CTX)
    if isinstance(ctx, bool) or not isinstance(ctx, int) or not 1 <= ctx <= limit:
        raise RequestError(f"ctx is {ctx!r}; this model takes a whole number from 1 to {limit}")
    return ctx


def default_kv_tokens(program: Program, ctx: int, kv_tokens: int | None) -> int:
    """The cache asked for, at least one context; or up to four of them where memory clearly allows."""
    if kv_tokens is not None:
        if isinstance(kv_tokens, bool) or not isinstance(kv_tokens, int) or kv_tokens < ctx:
            raise RequestError(f"kv_tokens is {kv_tokens!r}; a whole number of at least ctx, {ctx}, was expected")
        return kv_tokens
    per_token = program.new_state(1).n_bytes / PAGE_SIZE
    affordable = int(_MEMORY_SHARE * available_memory() / per_token)
    return max(ctx, min(_MOST_CONTEXTS * ctx, affordable))


def available_memory() -> int:
    """Bytes that this process could still take: the machine's, or its cgroup's where that is less."""
    if sys.platform == "win32":
        return free_bytes()
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        return available if limit == "max" else max(0, min(available, int(limit) - used))
    except (OSError, ValueError):
        return available
