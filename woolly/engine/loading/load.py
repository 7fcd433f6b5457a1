"""Model loading: compile a file to a program and size its cache."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly.engine import multimodal
from woolly.engine.loading.adapters import Adapter, adapted, open_adapter
from woolly.engine.loading.context_length import MAX_CTX, MIN_CTX, check_ctx, context_limit
from woolly.engine.loading.draft_files import draft_token_map, open_draft_file, with_draft
from woolly.engine.loading.memory_estimate import check_memory, estimate, weight_bytes
from woolly.engine.step.adaptive_batch_size import AdaptiveBatchSize
from woolly.errors import GGUFError, ModelError, PlanError, RequestError, UnsupportedError
from woolly.gguf import GGUFFile, Tensor, open_gguf
from woolly.gguf.overlay import Value, write_overrides
from woolly.machine.memory import available_memory
from woolly.models import draft_tensors, trace, trace_encoder
from woolly.plan.passes import inject_embeddings
from woolly.runtime import PAGE_SIZE, Backend, Options, Program, Stages, backend_for, get_backend, pages_for
from woolly.store import resolve
from woolly.store.file_digest import digest_of
from woolly.tokens import Tokenizer

if TYPE_CHECKING:
    from woolly.engine.loading.control_vectors import Scaled
    from woolly.plan import Plan, Pooling, Result

log = logging.getLogger("woolly.engine")

# Maximum number of tokens per text in embedding and scoring.
MAX_TEXT = 8192

# The cache has up to four contexts, within this share of the available memory.
_MAX_CONTEXTS = 4
_MEMORY_SHARE = 0.1

# Recurrent snapshots for later requests take this share of the available memory, within bounds.
_MIN_SNAPSHOTS, _MAX_SNAPSHOTS = 4, 128
_SNAPSHOT_SHARE = 0.05

# Default concurrent requests: minimum, and (initial, maximum) per device type. An H200 gains up to 256. A CPU with few
# cores gains nothing beyond 16; a CPU with many cores measures its gain.
_MIN_RUNNING = 16
_BATCH_SIZES_CPU, _BATCH_SIZES_GPU = (16, 64), (64, 256)
_ROWS_EACH = 4  # rows of a step per decoding request; prompts use the rest
_PAGES_EACH = 8  # cache pages per concurrent request; with fewer, requests would evict each other
_RUNNING_SHARE = 0.05  # share of the memory left by the cache, for states and windows of requests beyond the minimum


@dataclass(frozen=True)
class LoadedModel:
    """A program and the file of its weights."""

    path: Path
    file: GGUFFile
    tokenizer: Tokenizer
    program: Program
    adapters: tuple[Adapter, ...] = ()
    salt: bytes = b""  # salt of all pages: digest of control vectors and overridden metadata
    tower: multimodal.Tower | None = None  # vision or audio encoder
    source: multimodal.Source | None = None  # encoder of an encoder-decoder model
    # Compiles the model with other adapters. None if the state is on a device and tied to one program.
    compile: Callable[[Sequence[Adapter | None]], Program] | None = None
    weight_bytes: int = 0  # maximum size of the prepared weights
    draft_file: GGUFFile | None = None  # file of the MTP block or draft head, unless it is the model file
    draft_ids: npt.NDArray[np.int64] | None = None  # model token of each draft token; None if they are identical

    def check(self) -> None:
        """Raise ModelError if a file has changed since it was opened."""
        self.file.check()
        if self.draft_file is not None:
            self.draft_file.check()
        for adapter in self.adapters:
            adapter.file.check()
        if self.tower is not None:
            self.tower.file.check()

    def close(self) -> None:
        """Stop loading weights, then close the files."""
        self.program.close()
        if self.source is not None:
            self.source.close()
        self.file.close()
        if self.draft_file is not None:
            self.draft_file.close()
        for adapter in self.adapters:
            adapter.close()
        if self.tower is not None:
            self.tower.close()


def load_model(
    model: str | os.PathLike[str],
    backend: str,
    options: Options,
    result: Result | None = None,
    pooling: Pooling | None = None,
    adapters: Mapping[str, str | os.PathLike[str]] | None = None,
    ctx: int | None = None,
    draft: bool | None = False,
    draft_file: Path | None = None,
    control_vectors: Scaled = (),
    control_vector_layers: tuple[int, int] | None = None,
    stages: Stages | None = None,
    checks_memory: bool = False,
    projector: Path | None = None,
    needs_projector: bool = True,
    metadata: Mapping[str, Value] | None = None,
) -> LoadedModel:
    """Open a GGUF file, given by its path or by the name of a pulled model, and LoRA files by name.

    See `trace` for result, pooling and ctx, and `steered` for control vectors. With `draft`, the plan includes the
    file's MTP block, and a missing block is an error; None uses the block if the file has one. The block of a
    `draft_file` replaces the file's block. With `stages`, the program runs on pipeline stages. `checks_memory` raises
    RequestError if the model does not fit the available memory. With a `projector` (mmproj file), its encoders are
    opened too, and the plan takes embeddings; an unusable projector is skipped with a log message unless
    `needs_projector`. `metadata` overrides values of the file.
    """
    check_ctx(ctx)
    path = resolve(model)
    file = open_gguf(path)
    other: GGUFFile | None = None
    program: Program | None = None
    opened: list[Adapter] = []
    tower: multimodal.Tower | None = None
    source: multimodal.Source | None = None
    try:
        file.overlay(metadata or {})
        plan = trace(file, result, pooling, ctx)
        if plan.has_source:
            backend = multimodal.source_backend(backend, options)
        if (
            not plan.is_causal or plan.result != "logits"
        ):  # a text must fit one batch; memory is allocated when rows are first used
            options = replace(options, max_rows=max(options.rows(), min(context_limit(file, plan), MAX_TEXT)))
        if stages is not None and plan.diffusion is not None:
            raise RequestError("diffusion language models cannot be split over stages", field="stages")
        other = open_draft_file(file, draft_file, draft)
        plan = with_draft(file, plan, ctx, draft, other)
        if plan.draft is None and other is not None:  # rejected: the model must not use its tensors
            other.close()
            other = None
        ids = draft_token_map(other, plan)
        if checks_memory and stages is None:
            needed = estimate(file, plan, backend, options, ctx, options.cache_tokens, projector)
            check_memory(path.stem, needed)
        options = _with_cache(options, file, plan, ctx)
        prepared = weight_bytes(file, plan, backend, options)
        if projector is not None:
            if stages is not None:
                raise RequestError(
                    "a model on pipeline stages does not support images yet; open it without a projector"
                )
            plan, tower = _with_tower(plan, projector, backend, options, is_needed=needs_projector)
        if plan.has_source:
            if stages is not None or tower is not None:
                raise RequestError(
                    "an encoder-decoder model supports neither pipeline stages nor images; remove stages and projector"
                )
            most = min(max(ctx or 0, context_limit(file, plan)), MAX_TEXT)
            traced = trace_encoder(file, plan, ctx)
            its, options = _divided(options, traced.plans, plan)
            source = multimodal.open_encoder(file, traced, backend, its, most)
            plan = inject_embeddings(plan, source.width)
        opened += (open_adapter(name, its, plan) for name, its in (adapters or {}).items())
        salt = "".join(write_overrides(metadata or {})).encode()
        if control_vector_layers is not None and not control_vectors:
            raise RequestError(
                "control_vector_layers needs control vectors; add control_vectors or remove control_vector_layers",
                field="control_vector_layers",
            )
        unchanged = plan

        def changed(adapters: Sequence[Adapter | None]) -> tuple[Plan, Mapping[str, Tensor], bytes]:
            plan, more = adapted(unchanged, adapters) if adapters else (unchanged, {})
            tensors = {**file.tensors, **draft_tensors(other), **more}
            if not control_vectors:
                return plan, tensors, b""
            from woolly.engine.loading.control_vectors import steered

            plan, more, steering = steered(plan, control_vectors, control_vector_layers)
            return plan, {**tensors, **more}, steering

        plan, tensors, steering = changed(opened)
        salt += steering
        if stages is not None:
            stages = replace(stages, model=digest_of(file.paths), ctx=ctx)
        # Create the tokenizer while a GPU opens (0.2 s) and while weights load in the background.
        with ThreadPoolExecutor(1, "woolly-tokenizer") as pool:
            made = pool.submit(Tokenizer.from_metadata, file.metadata)
            chosen = get_backend(backend_for(options.device, backend), stages)
            program = _compiled(chosen, plan, tensors, options, needs_draft=draft is True)
            program.load_weights()
            tokenizer = made.result()
        n_tokens = plan.width if plan.result == "logits" else plan.n_tokens
        if tokenizer.n_vocab != n_tokens:
            what = f"computes {n_tokens} logits" if plan.result == "logits" else f"has {n_tokens} tokens"
            raise ModelError(f"{path}: the vocabulary has {tokenizer.n_vocab} tokens, but the model {what}")

        def compiled(adapters: Sequence[Adapter | None]) -> Program:
            program = chosen.compile(*changed(adapters)[:2], options)
            program.load_weights()
            return program

        is_free = stages is None and program.about.backend in ("cpu", "reference")
        return LoadedModel(
            path,
            file,
            tokenizer,
            program,
            tuple(opened),
            salt,
            tower,
            source,
            compile=compiled if is_free else None,
            weight_bytes=prepared,
            draft_file=other,
            draft_ids=ids,
        )
    except BaseException:
        for one in (program, source):
            if one is not None:
                one.close()
        file.close()
        if other is not None:
            other.close()
        for adapter in opened:
            adapter.close()
        if tower is not None:
            tower.close()
        raise


def _compiled(
    backend: Backend, plan: Plan, tensors: Mapping[str, Tensor], options: Options, *, needs_draft: bool
) -> Program:
    """Compile the program. Skip an optional draft that the model's devices cannot run."""
    try:
        return backend.compile(plan, tensors, options)
    except UnsupportedError as error:
        if needs_draft or plan.draft is None or not (plan.draft.borrows or plan.draft.mask is not None):
            raise
        program = backend.compile(replace(plan, draft=None), tensors, options)
        log.warning("%s", error)
        return program


def _with_tower(
    plan: Plan, projector: Path, backend: str, options: Options, *, is_needed: bool
) -> tuple[Plan, multimodal.Tower | None]:
    """Return the plan that takes embeddings, and the tower. Return the plain plan and None for a skipped projector."""
    tower: multimodal.Tower | None = None
    try:
        tower = multimodal.open_tower(projector, backend, options)
        return inject_embeddings(plan, tower.width), tower
    except BaseException as error:
        if tower is not None:
            tower.close()
        if is_needed or not isinstance(error, (GGUFError, ModelError, PlanError, UnsupportedError)):
            raise
        log.warning("%s is not used, so the model does not support images: %s", projector.name, error)
        return plan, None


def _divided(options: Options, encoder: Sequence[Plan], decoder: Plan) -> tuple[Options, Options]:
    """Return the options of encoder and decoder, with weight memory divided in proportion to their weights."""
    if options.weight_memory is None:
        return options, options
    own, other = (
        sum(weight.n_bytes for plan in plans for weight in plan.weights.values()) for plans in (encoder, [decoder])
    )
    first = options.weight_memory * own // (own + other)
    return replace(options, weight_memory=first), replace(options, weight_memory=options.weight_memory - first)


def _with_cache(options: Options, file: GGUFFile, plan: Plan, ctx: int | None) -> Options:
    """Return the options with the cache size to reserve on a GPU: the requested size or the minimum."""
    least = min(MIN_CTX, context_limit(file, plan)) if plan.result == "logits" else MAX_TEXT
    # Each running request reads one slot and writes another; so does `logits`.
    n_slots = 2 * options.max_running + 2 + _MIN_SNAPSHOTS if plan.slots else 0
    return replace(options, cache_tokens=options.cache_tokens or ctx or least, cache_slots=n_slots)


def default_kv_tokens(program: Program, ctx: int, kv_tokens: int | None) -> int:
    """Return `kv_tokens`, or by default up to four contexts within 10 % of the free memory.

    Raise RequestError if `kv_tokens` is less than ctx.
    """
    if kv_tokens is not None:
        if isinstance(kv_tokens, bool) or not isinstance(kv_tokens, int) or kv_tokens < ctx:
            raise RequestError(
                f"kv_tokens is {kv_tokens!r}; expected an integer of at least ctx, {ctx}", field="kv_tokens"
            )
        return kv_tokens
    most = _MAX_CONTEXTS * ctx
    per_token = _token_bytes(program)
    affordable = int(_MEMORY_SHARE * _memory(program) / per_token) if per_token else _MAX_CONTEXTS * MAX_CTX
    return max(ctx, min(most, affordable))


def _token_bytes(program: Program) -> float:
    """Return the cache bytes per token of a program, including its draft block."""
    # The memory of sliding windows does not grow with the context, so only the growing share counts.
    growing = program.plan.growth_bytes(1) / max(1.0, program.plan.bytes_per_token(1))
    own = program.plan.draft
    drafted = 0 if program.draft is None or (own and own.borrows) else program.draft.new_state(1).page_bytes
    return (growing * program.new_state(1).page_bytes + drafted) / PAGE_SIZE


def _memory(program: Program) -> int:
    """Return the bytes available for a cache."""
    return available_memory() if program.about.memory is None else program.about.memory


def default_snapshots(program: Program) -> int:
    """Return the number of recurrent snapshots to store: 4 to 128, within 5 % of the free memory."""
    size = program.plan.bytes_per_sequence
    if not size:
        return 0
    affordable = int(_SNAPSHOT_SHARE * _memory(program) / size)
    return max(_MIN_SNAPSHOTS, min(_MAX_SNAPSHOTS, affordable))


def default_batch_size(program: Program, kv_tokens: int, chunk: int | None, *, has_tower: bool) -> AdaptiveBatchSize:
    """Return the default number of concurrent requests: at least 16, limited by device type and memory.

    Decoding requests take at most a quarter of the `chunk` rows of a step, so that prompts advance as well. Vision
    models run 16 requests: a step must have room for an image with bidirectional attention and all decoding requests.
    """
    first, most = _BATCH_SIZES_GPU if program.about.device else _BATCH_SIZES_CPU
    n_rows = min(chunk or program.max_rows, program.max_rows)
    most = _MIN_RUNNING if has_tower else min(most, pages_for(kv_tokens) // _PAGES_EACH, n_rows // _ROWS_EACH)
    each = 2 * program.plan.bytes_per_sequence
    if program.plan.windows:
        each += program.new_state(1).page_bytes * sum(pages_for(window) + 3 for window in program.plan.windows)
    if each:
        promised = kv_tokens * _token_bytes(program) + default_snapshots(program) * program.plan.bytes_per_sequence
        left = max(0.0, _memory(program) - promised - _MIN_RUNNING * each)
        most = min(most, _MIN_RUNNING + int(_RUNNING_SHARE * left / each))
    return AdaptiveBatchSize(first, max(_MIN_RUNNING, most))
