"""Text and audio encoders of encoder-decoder models; encoder rows precede the decoder's prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from woolly.engine.multimodal.encoder_cost import SLICE, row_work
from woolly.engine.multimodal.encoder_run import EncoderRun, RunningStage
from woolly.engine.multimodal.multimodal_input import MultimodalInput, has_placeholders, read_prompt
from woolly.engine.multimodal.tower import Tower
from woolly.engine.multimodal.transducer import TransducerDecoder, open_transducer
from woolly.errors import ModelError, RequestError, UnsupportedError
from woolly.models import TracedEncoder
from woolly.multimodal import EncoderInput, Placeholder, ProcessedItem, Prompt
from woolly.multimodal.encoder import PatchLayout, TracedTower
from woolly.runtime import Options, Program, backend_for, get_backend, is_gpu_backend

if TYPE_CHECKING:
    from woolly.gguf import GGUFFile
    from woolly.sampling.params import SamplingParams


class TextEncoder:
    """Text encoder of an encoder-decoder model. Only the engine thread may call it, except for `read`."""

    def __init__(self, program: Program, start: int) -> None:
        """`start` is the decoder's start token."""
        self.program = program
        self.width = program.plan.width
        self._start = start
        self._stage = RunningStage(program)
        self.n_runs = 0  # number of started runs

    def read(self, given: Sequence[int] | Prompt, params: SamplingParams) -> tuple[list[int], MultimodalInput]:
        """Return the decoder prompt: encoder rows, then the start token."""
        _check_params(params)
        if has_placeholders(given):
            raise RequestError("this model supports neither images nor audio; its encoder takes text")
        ids = [int(one) for one in given if not isinstance(one, Placeholder)]
        if len(ids) > self.program.max_rows:
            raise RequestError(
                f"the prompt has {len(ids)} tokens, but the encoder takes {self.program.max_rows}; shorten it",
                code="context_length",
                limit=self.program.max_rows,
                given=len(ids),
                names=(),
            )
        encoder_input = EncoderInput(np.array(ids, np.float32)[:, None], (1, 1, len(ids)))
        rows = Placeholder(ProcessedItem.of("text", [encoder_input]), 0, 0, len(ids))
        prompt, inputs = read_prompt((rows, self._start), b"", is_source=True)
        inputs.source_ids = tuple(ids)
        return prompt, inputs

    def n_rows(self, encoder_input: EncoderInput, _kind: object = None) -> int:
        """Return the number of encoder rows of a text: one per token."""
        return len(encoder_input.values)

    def start_batch(self, inputs: Sequence[EncoderInput], _kind: object = None) -> EncoderRun:
        """Start encoding a batch of texts. The previous batch must be finished or dropped."""
        self.n_runs += len(inputs)
        orders = [np.arange(len(encoder_input.values), dtype=np.int32) for encoder_input in inputs]
        layouts = [
            ([PatchLayout(rows, rows, is_text=True)], encoder_input.values)
            for rows, encoder_input in zip(orders, inputs, strict=True)
        ]
        return EncoderRun([self._stage], layouts, self.program.plan.width)

    def batch_work(self, inputs: Sequence[EncoderInput], _kind: object = None) -> float:
        """Return the multiply-adds of a batch, or infinity if the texts do not fit one batch."""
        lengths = [len(encoder_input.values) for encoder_input in inputs]
        if sum(lengths) > self.program.max_rows:
            return math.inf
        return sum(n * sum(row_work(self.program.running_plan, n)) for n in lengths)

    def cancel(self) -> None:
        """Cancel the current run. Thread-safe."""
        self.program.cancel()

    @property
    def slice_work(self) -> float:
        """Multiply-adds of a slice per engine step."""
        return SLICE * self.program.about.threads

    def close(self) -> None:
        """Stop loading weights."""
        self.program.close()


class AudioEncoder(Tower):
    """Audio encoder of a speech-to-text model, stored in the model file."""

    def __init__(
        self, file: GGUFFile, traced: TracedTower, programs: list[Program], decoder: TransducerDecoder | None = None
    ) -> None:
        """`decoder` is the CTC or transducer decoder of models without a decoder plan."""
        super().__init__(file, [(traced, programs)])
        self.decoder = decoder

    def close(self) -> None:
        """Stop loading weights, then close the file."""
        if self.decoder is not None:
            self.decoder.close()
        super().close()

    @property
    def identity(self) -> bytes:
        """Empty, because the encoder belongs to the model, which already identifies its output."""
        return b""

    def read(self, given: Sequence[int] | Prompt, params: SamplingParams) -> tuple[list[int], MultimodalInput]:
        """Return the decoder prompt: encoder rows of an audio clip, then tokens."""
        _check_params(params)
        if not has_placeholders(given) or len(given) < 2 or any(isinstance(part, Placeholder) for part in given[1:]):
            raise RequestError(
                "this is a speech-to-text model and cannot complete text; use `woolly run MODEL --audio FILE`,"
                " LLM.transcribe or POST /v1/audio/transcriptions",
                field="model",
                code="wrong_model",
                names=(),
            )
        for part in given[:1]:
            if isinstance(part, Placeholder):
                self.check(part.source.inputs[part.index], "audio")
        prompt, inputs = read_prompt(given, self.identity, is_source=True)
        inputs.source_ids = tuple(prompt[inputs.n_source :])
        return prompt, inputs


Source = TextEncoder | AudioEncoder


def _check_params(params: SamplingParams) -> None:
    if params.context_shift or params.prompt_logprobs is not None:
        option = "context_shift" if params.context_shift else "prompt_logprobs"
        raise RequestError(
            f"{option} is not supported by encoder-decoder models, whose answers do not continue the prompt; remove it",
            field=option,
        )


def source_backend(backend: str, options: Options) -> str:
    """Return the CPU or reference backend for an encoder-decoder model.

    Raise UnsupportedError if a GPU is requested.
    """
    name = backend_for(options.device, backend)
    if is_gpu_backend(name) or options.wants_gpu:
        raise UnsupportedError(
            "GPUs do not support encoder-decoder models yet (Whisper, Parakeet, T5); remove the device option, or use"
            " backend='cpu'"
        )
    return "cpu" if name == "auto" else name


def open_encoder(
    file: GGUFFile, traced: TracedEncoder | TracedTower, backend: str, options: Options, max_rows: int
) -> Source:
    """Open the encoder in a model's file. A text encoder takes prompts of up to `max_rows` tokens."""
    if isinstance(traced, TracedEncoder):
        its = Options(threads=options.threads, weight_memory=options.weight_memory, max_rows=max_rows)
        program = get_backend(backend).compile(traced.plan, file.tensors, its)
        program.load_weights()
        return TextEncoder(program, traced.start)
    programs: list[Program] = []
    try:
        sizes = [sum(weight.n_bytes for weight in plan.weights.values()) for plan in traced.plans]
        for stage, size in zip(traced.stages, sizes, strict=True):
            memory = options.weight_memory
            share = None if memory is None else memory * size // (sum(sizes) or 1)
            its = Options(threads=options.threads, weight_memory=share, max_rows=stage.max_rows)
            programs.append(get_backend(backend).compile(stage.plan, traced.tensors, its))
            programs[-1].load_weights()
        decoder = None if traced.decoder is None else open_transducer(traced.decoder, backend, options)
        return AudioEncoder(file, traced, programs, decoder)
    except BaseException as error:
        for program in programs:
            program.close()
        if isinstance(error, (ArithmeticError, LookupError, TypeError, ValueError)):
            raise ModelError(f"{file.path}: invalid encoder metadata: {error}") from error
        raise
