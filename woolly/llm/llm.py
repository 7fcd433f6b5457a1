"""LLM: the main class of the Python API."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, overload

import numpy as np
import numpy.typing as npt

from woolly.engine import (
    Completion,
    Engine,
    EngineDriver,
    LoadedModel,
    Request,
    Score,
    Stream,
    context_limit,
    default_ctx,
)
from woolly.engine.loading.adapters import AdapterSet, named_adapters
from woolly.engine.loading.control_vectors import scaled_files
from woolly.engine.loading.load import default_batch_size, default_kv_tokens, default_snapshots, load_model
from woolly.engine.loading.step_names import find_norm
from woolly.engine.threads.dynamic_adapters import DynamicAdaptersMixin
from woolly.errors import RequestError
from woolly.gguf.overlay import Overlay
from woolly.llm.answer import ChatCompletion, ChatStream, read_answers, written_note
from woolly.llm.disk_cache import DiskCacheMixin, open_disk
from woolly.llm.embeddings import rms_normed
from woolly.llm.load_checks import check_load_options, itl_target_of, load_modalities, load_template, overrides_of
from woolly.llm.model_options import LoadOptions, ModelOptions, takes_options
from woolly.llm.pooling import PoolingMixin
from woolly.llm.presets import defaults_of, with_load
from woolly.llm.progress import check_progress, progress_bar
from woolly.llm.projector import usable_projector
from woolly.llm.prompts import Chats, Messages, is_list_of_chats, is_list_of_prompts
from woolly.llm.requests import Params, Prompt, Prompts, RequestMixin
from woolly.llm.speculation import draft_source_of, embedded_draft, open_draft
from woolly.llm.stage_checks import parse_stages
from woolly.llm.unsupported_calls import UnsupportedCallsMixin
from woolly.runtime import Options, parse_max_running, parse_size
from woolly.sampling import SamplingParams
from woolly.sampling.unknown_arguments import suggest_names
from woolly.speech.transcription import TranscriptionMixin
from woolly.store import find_derived_model, find_preset, resolve

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from woolly.cache import PrefixStats
    from woolly.llm.options import ChatOptions, GenerateOptions
    from woolly.plan import Plan


@suggest_names
class LLM(RequestMixin, PoolingMixin, TranscriptionMixin, DiskCacheMixin, UnsupportedCallsMixin, DynamicAdaptersMixin):
    """Loaded model with its engine. Thread-safe: requests of several threads are batched into the same steps.

    `path`, `tokenizer`, `template` and `ctx` describe the open model.

    >>> with LLM("smollm2") as llm:
    ...     print(llm.chat("Why is the sky blue?", max_tokens=50))
    """

    @takes_options
    def __init__(self, model: str | os.PathLike[str], **options: Unpack[LoadOptions]) -> None:
        """Open a GGUF file by path or by its pulled name.

        `backend` is cuda, metal, vulkan, cpu, reference, or auto (the fastest available). `device` is cpu, cuda, metal
        or vulkan, one of several GPUs ("cuda:1"), or several GPUs that share the layers ("cuda:0,1"). `gpu_layers` is
        the number of layers on GPUs, from the first: a number, "all", or "auto" (as many as fit; the default).
        `ctx` is the maximum number of prompt and answer tokens per request: by default the model's context, reduced to
        fit in a quarter of the free memory. A context longer than the training context is accepted with a warning.
        `kv_tokens` is the capacity of the KV cache in tokens, for running requests and cached prefixes: by default up
        to four contexts within a tenth of the available memory, but at least one context. `max_running` is the maximum
        number of concurrent requests: a number, or "auto" (limited by throughput and memory; the default). A step
        computes at most `chunk` tokens, or fewer prompt tokens if that would exceed `itl_target` ms while answers run
        (250 on CPUs, 50 on GPUs; 0 for none). `threads` defaults to all cores. `weight_memory` limits the memory of
        prepared weights, in bytes or as a string such as "600MB".
        `kv_type` is the type of the KV cache: f16, f32, q8_0 or q4; "q8_0/q4" sets the types of K and V separately.
        `speculation` drafts up to `draft_tokens` tokens per step, which never changes the output: "prompt_lookup",
        "mtp" with the model's MTP block (multi-token prediction), "mtp_lookup" with both, or a smaller model with the
        same vocabulary (a file, a name, or an open LLM, whose file is opened again). "auto" selects "mtp" if the file
        has an MTP block or such a file is next to it; None or "none" disables speculation.
        `metadata` overrides values of the file by key; "*." at the start of a key stands for the architecture.
        `rope_scaling` (none, linear, yarn), `rope_scale`, `rope_freq_base` and `yarn_orig_ctx` override the
        corresponding keys; for example, yarn with a scale of 4 extends the training context four times.
        `adapters` are LoRA files in GGUF, as a list or a mapping of names to files. A request uses all of them, unless
        its `adapters` option sets scales. `add_adapter`, `scale_adapters` and `remove_adapter` change them at run time.
        `control_vectors` are GGUF files of directions to add to layer outputs, for all requests: a list, or a mapping
        of files to scales. `control_vector_layers` are the first and last of these layers.
        `chat_template` replaces the file's template. `preset` names a table of presets.toml with the default system
        prompt, context and sampling parameters; the default is the table with the model's name, if it exists; "none"
        disables presets. `cache_disk` is the disk space for KV pages of prompts, such as "20GB", which later processes
        reuse. `cache_disk_folder` is their folder, by default $WOOLLY_HOME/pages. `mmproj` is the projector file for
        image and audio input, by default the file next to the model; "none" disables it.
        `stages` are the addresses (HOST:PORT) of `woolly stage` processes, in layer order, each with the same file and
        the token of `stage_token_file`. `check_memory` rejects a model that does not fit in the available memory.
        """
        given = ModelOptions(**options)  # type: ignore[arg-type]  # wider types, parsed below
        self.path: Path = resolve(model)
        made = find_derived_model(os.fspath(model)) if given.preset is None else None
        self.preset = made or find_preset(self.path, given.preset)
        given = with_load(given, self.preset)
        check_load_options(given)
        budget = parse_size("weight_memory", given.weight_memory)
        devices = given.device, given.gpu_layers, given.n_cpu_moe
        runtime = Options(given.threads, budget, given.kv_type, None, None, *devices)
        max_running = parse_max_running("max_running", given.max_running)
        runtime = runtime.for_cache(given.kv_tokens, max_running or runtime.max_running)
        named, guesses = named_adapters(given.adapters), draft_source_of(given.speculation)
        places = parse_stages(given, named)
        draft, draft_file = embedded_draft(self.path, "none" if places is not None and guesses == "auto" else guesses)
        loaded = load_model(
            self.path,
            given.backend,
            runtime,
            adapters=named,
            ctx=given.ctx,
            draft=draft,
            draft_file=draft_file,
            control_vectors=scaled_files(given.control_vectors),
            control_vector_layers=given.control_vector_layers,
            stages=places,
            checks_memory=given.check_memory,
            projector=usable_projector(self.path, given.mmproj, has_stages=places is not None),
            needs_projector=given.mmproj is not None,
            metadata=overrides_of(given),
        )
        self.tokenizer = loaded.tokenizer
        self._loaded: list[LoadedModel] = [loaded]
        files = self._loaded  # with the current adapters
        self._identifying, self._adapting = threading.Lock(), threading.Lock()
        try:
            self.template = load_template(loaded, given.chat_template, given.tool_format)
            if isinstance(loaded.file.metadata, Overlay):
                loaded.file.metadata.check_read()
            self.defaults = defaults_of(self.preset, SamplingParams())
            self.ctx = default_ctx(
                loaded.file, loaded.program.plan, given.ctx, given.kv_type, loaded.program.about.memory
            )
            self.modalities = load_modalities(loaded, self.ctx)
            kv_tokens = default_kv_tokens(loaded.program, self.ctx, given.kv_tokens)
            has_tower, chunk = self.modalities is not None or loaded.source is not None, given.chunk
            batch_size = (
                None if max_running else default_batch_size(loaded.program, kv_tokens, chunk, has_tower=has_tower)
            )
            disk = open_disk(loaded, given.cache_disk, given.cache_disk_folder)
            engine = Engine(
                loaded.program,
                self.tokenizer,
                ctx=self.ctx,
                ctx_limit=context_limit(loaded.file, loaded.program.plan),
                kv_tokens=kv_tokens,
                chunk=given.chunk,
                max_running=runtime.max_running,
                batch_size=batch_size,
                itl_target=itl_target_of(given.itl_target, loaded.program),
                n_snapshots=default_snapshots(loaded.program),
                draft=open_draft(guesses, self._loaded, self.ctx, kv_tokens, given, runtime),
                draft_tokens=given.draft_tokens,
                check_file=lambda: files[0].check(),
                adapters=AdapterSet.whole(loaded.adapters),
                disk=None if disk is None else disk.folder,
                compute_rate=0.0 if disk is None else disk.compute_rate,
                salt=loaded.salt,
                tower=loaded.tower,
                source=loaded.source,
            )
            self._use_disk(disk, engine)
            self.driver = EngineDriver(engine)
        except BaseException:
            self._unload()
            raise

    @property
    def plan(self) -> Plan:
        """Plan of the model: its steps in order."""
        return self.engine.program.plan

    @property
    def engine(self) -> Engine:
        """Engine that runs the requests."""
        return self.driver.engine

    @property
    def is_closed(self) -> bool:
        """True after `close`."""
        return self.driver.is_closed

    @property
    def n_vocab(self) -> int:
        """Number of logits per row."""
        return self.plan.n_tokens

    def tokenize(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Return token ids; `add_special` adds BOS and EOS as the file specifies."""
        return self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: Sequence[int]) -> str:
        """Return the text of token ids."""
        return self.tokenizer.decode(ids)

    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Return the logits after each token, float32 [len(ids), n_vocab]."""
        return self.driver.call(lambda engine: engine.logits(ids))

    def hidden(self, ids: Sequence[int], step: str | int) -> npt.NDArray[np.float32]:
        """Return the output of a plan step for each token, float32 [len(ids), width], equal on every backend.

        "blk.3" is the output of layer 3, "output_norm" the normalized final state before the output projection, and
        "blk.3.ffn_norm" the output of the step with this weight (see `woolly plan`). A number is a step index of
        `woolly plan --fused`. Raise RequestError if the backend never computes this value separately.
        """
        if (found := find_norm(self.engine.program, step)) is None:
            return self.driver.call(lambda engine: engine.hidden(ids, step))
        # The backend fuses the norm: read its input and normalize it here.
        before, norm = found
        weight = self._loaded[0].file.tensors[norm.weights[0].name].dequantize()
        values = self.driver.call(lambda engine: engine.hidden(ids, before))
        return rms_normed(values, weight, norm.number("eps"))

    def score(self, prompt: Prompt) -> Score:
        """Return the log-probability of each token of a text."""
        request = self.prepare_score(prompt)
        self.driver.complete([[request]])
        return Score.of(request)

    def prefix_stats(self) -> PrefixStats:
        """Return prefix cache statistics: hits, computed tokens, and reasons for misses."""
        return self.driver.call(Engine.prefix_stats)

    @overload
    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        stream: Literal[False] = False,
        progress: bool = False,
        **options: Unpack[GenerateOptions],
    ) -> Completion: ...

    @overload
    def generate(
        self,
        prompt: Prompts,
        params: Params | None = None,
        *,
        stream: Literal[False] = False,
        progress: bool = False,
        **options: Unpack[GenerateOptions],
    ) -> list[Completion]: ...

    @overload
    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        stream: Literal[True],
        **options: Unpack[GenerateOptions],
    ) -> Stream: ...

    def generate(
        self,
        prompt: Prompt | Prompts,
        params: Params | None = None,
        *,
        stream: bool = False,
        progress: bool = False,
        **options: Unpack[GenerateOptions],
    ) -> Completion | list[Completion] | Stream:
        """Complete a prompt, or each of a list of prompts concurrently. A prompt is text or a list of token ids.

        For a list of prompts, `params` is one value for all prompts or a list with one per prompt, and the result is a
        list in the same order; `progress` shows a progress bar on standard error. With `stream`, return an iterator
        over chunks of a single answer.

        Each field of SamplingParams is also an option, which overrides `params`: `generate("hi", max_tokens=5)`. After
        `timeout` seconds, a request ends as cancelled with its partial text. Requests with higher `priority` run first.
        `hooks` maps step names to callbacks, which receive (positions, values) of every computed token (see `hidden`).

        A failed request raises its error; in a list, its Completion has the error.
        """
        many = is_list_of_prompts(prompt)
        check_progress(stream, progress)
        groups = self.prepare(prompt, params, **options)
        if stream:
            if many:
                raise RequestError("streaming takes one prompt, but got a list")
            return Stream(self.driver, groups[0])
        completions = self._complete(groups, progress)
        return completions if many else completions[0].checked()

    @overload
    def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        stream: Literal[False] = False,
        progress: bool = False,
        **options: Unpack[ChatOptions],
    ) -> ChatCompletion: ...

    @overload
    def chat(
        self,
        messages: Chats,
        params: Params | None = None,
        *,
        stream: Literal[False] = False,
        progress: bool = False,
        **options: Unpack[ChatOptions],
    ) -> list[ChatCompletion]: ...

    @overload
    def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        stream: Literal[True],
        **options: Unpack[ChatOptions],
    ) -> ChatStream: ...

    def chat(
        self,
        messages: Messages | Chats,
        params: Params | None = None,
        *,
        stream: bool = False,
        progress: bool = False,
        **options: Unpack[ChatOptions],
    ) -> ChatCompletion | list[ChatCompletion] | ChatStream:
        """Answer a conversation, rendered with the chat template, or each of a list of conversations concurrently.

        A string is a single user message. The answer's `text` excludes its `reasoning` and `tool_calls`. Lists,
        `stream`, `progress`, sampling options, `timeout` and `priority` work as in `generate`.

        `schema` is a JSON schema or a pydantic class that the answer must match; with a class, `parsed` is its
        instance. `tools` are Python functions with type hints, or mappings in OpenAI's format. `tool_choice` is none,
        auto, required or the name of a tool; with `parallel_tool_calls=False`, the model makes at most one call.
        `reasoning_effort` sets the effort of a model whose template supports it. With `split_reasoning=False`,
        reasoning stays in the text. With `continue_final`, the answer continues the last message, which must be the
        assistant's. `documents` and `variables` (such as enable_thinking) are passed to the template.

        Control tokens in message content are tokenized as control tokens, as in other engines, so check untrusted
        content.
        """
        check_progress(stream, progress)
        if stream:
            return ChatStream(self.driver, *self.prepare_chat(messages, params, **options), options.get("schema"))
        chats = self.prepare_chats(messages, params, **options)
        completions = self._complete([requests for _, requests in chats], progress)
        if not (many := is_list_of_chats(messages)):
            completions[0].checked()
        answers = read_answers(chats, completions, options.get("schema"))
        return answers if many else answers[0]

    def compact(self, messages: Messages, params: SamplingParams | None = None, **options: Unpack[ChatOptions]) -> str:
        """Return a summary of a conversation, written by the model; `summary_text` turns it into a message."""
        return written_note(self.driver, *self.prepare_note(messages, params, **options))

    def close(self) -> None:
        """Free weights, cache, threads and file. Unfinished requests end as cancelled; further calls raise."""
        self.driver.close()
        if not self.driver.is_foreign:  # a forked child leaves the model to its parent
            with self._adapting:  # a change of adapters ends first, because the closed driver rejects it
                self._unload()

    def __enter__(self) -> LLM:
        _ = self.engine  # raises if the LLM was closed
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = f"ctx={self.ctx}" if self._loaded else "closed"
        return f"LLM({str(self.path)!r}, {state})"

    def _complete(self, groups: Sequence[Sequence[Request]], progress: bool) -> list[Completion]:
        if not progress:
            return self.driver.complete(groups)
        with progress_bar(sum(map(len, groups))) as ended:
            return self.driver.complete(groups, ended)

    def _unload(self) -> None:
        while self._loaded:
            self._loaded.pop().close()
