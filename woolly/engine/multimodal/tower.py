"""Tower: the vision and audio encoders of a projector (mmproj) file."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly.engine.multimodal.encoder_cost import GPU_SLICE, SLICE, row_work
from woolly.engine.multimodal.encoder_run import EncoderRun, RunningStage
from woolly.engine.multimodal.memory import tower_bytes, traced_bytes
from woolly.errors import DeviceError, ModelError, RequestError, UnsupportedError
from woolly.gguf import GGUFFile, open_gguf
from woolly.multimodal import AudioSettings, EncoderInput, Modality, VisionSettings, read_projector
from woolly.multimodal.encoder import TracedTower, trace_towers
from woolly.runtime import (
    TOWER_KINDS,
    GpuBackend,
    Options,
    Program,
    backend_for,
    find_gpu,
    find_gpu_backend,
    get_backend,
    is_gpu_backend,
    parse_devices,
)
from woolly.store.file_digest import digest_of

if TYPE_CHECKING:
    from woolly.plan import Plan

log = logging.getLogger("woolly.engine")

# Maximum share of free GPU memory for an encoder; layers of the text model benefit more from it.
_GPU_SHARE = 0.25
# Maximum rows of a batch of images on a GPU: seven images of CLIP at 336 pixels.
_GPU_ROWS = 4096

Float32 = npt.NDArray[np.float32]


class _Encoder:
    """Traced encoder and the programs of its stages."""

    def __init__(self, traced: TracedTower, programs: list[Program]) -> None:
        self.traced = traced
        self.stages = [RunningStage(program) for program in programs]


class Tower:
    """Vision encoder, audio encoder or both, with their open file. Only the engine thread may call it.

    `kind` selects the encoder; None selects the first encoder of the file.
    """

    def __init__(self, file: GGUFFile, towers: list[tuple[TracedTower, list[Program]]]) -> None:
        self.file = file
        self._encoders: dict[Modality, _Encoder] = {
            traced.settings.kind: _Encoder(traced, own) for traced, own in towers
        }
        self._identity: bytes | None = None
        self.n_runs = 0  # number of started runs

    @property
    def settings(self) -> VisionSettings | AudioSettings:
        """Vision settings of the file, or audio settings if there is no vision encoder."""
        return self._encoder(None).traced.settings

    @property
    def vision(self) -> VisionSettings | None:
        """Vision settings of the file; None if there is no vision encoder."""
        settings = self._encoders["image"].traced.settings if "image" in self._encoders else None
        return settings if isinstance(settings, VisionSettings) else None

    @property
    def audio(self) -> AudioSettings | None:
        """Audio settings of the file; None if there is no audio encoder."""
        settings = self._encoders["audio"].traced.settings if "audio" in self._encoders else None
        return settings if isinstance(settings, AudioSettings) else None

    @property
    def width(self) -> int:
        """Number of columns of a row, equal to the width of the widest encoder."""
        return max(encoder.traced.width for encoder in self._encoders.values())

    @property
    def identity(self) -> bytes:
        """Digest of the file and the GPU: with equal identities, equal inputs have bit-identical rows."""
        if self._identity is None:
            self._identity = bytes.fromhex(digest_of(self.file.paths))
            if self.bits not in ("cpu", "reference"):
                self._identity += self.bits.encode()
        return self._identity

    @property
    def bits(self) -> str:
        """Hardware that affects the bits of rows, as in `About.bits`: "cpu", or "cuda sm_90"."""
        return " ".join(dict.fromkeys(program.about.bits for program in self.programs))

    @property
    def place(self) -> str:
        """Hardware that runs the encoder, such as "NVIDIA H200, sm_90" or "CPU, avx2, 8 threads"."""
        return " and ".join(dict.fromkeys(program.about.place for program in self.programs))

    def check(self, encoder_input: EncoderInput, kind: Modality | None = None) -> None:
        """Raise RequestError for an input that the encoder cannot process."""
        encoder = self._encoder(kind)
        settings, patch = encoder.traced.settings, encoder.traced.params.patch
        what, part = ("audio", "frame") if isinstance(settings, AudioSettings) else ("image", "patch")
        if encoder_input.values.shape[1] != patch:
            raise RequestError(f"a {part} has {encoder_input.values.shape[1]} values, but the encoder expects {patch}")
        most = (
            encoder.stages[0].program.max_rows - 1 - (settings.n_queries if isinstance(settings, VisionSettings) else 0)
        )
        if isinstance(settings, VisionSettings) and (n := encoder_input.grid_thw[1] * encoder_input.grid_thw[2]) > most:
            raise RequestError(
                f"the image has {n} patches of {settings.patch_size} x {settings.patch_size} pixels,"
                f" but the encoder takes {most}; send a smaller image"
            )
        try:
            settings.merged_grid(encoder_input.grid_thw)
            encoder.traced.patch_layout(encoder_input.grid_thw)
        except (ArithmeticError, LookupError, ValueError) as error:
            raise RequestError(f"the {what} does not fit the encoder: {error}") from None

    def n_rows(self, encoder_input: EncoderInput, kind: Modality | None = None) -> int:
        """Return the number of rows of an input, including the constant rows of the file."""
        traced = self._encoder(kind).traced
        return math.prod(traced.settings.merged_grid(encoder_input.grid_thw)) + (
            0 if traced.constants is None else len(traced.constants)
        )

    def start_run(self, encoder_input: EncoderInput, kind: Modality | None = None) -> EncoderRun:
        """Start a run of one input.

        The previous run must be finished or dropped because programs share their buffers.
        """
        return self.start_batch([encoder_input], kind)

    def start_batch(self, inputs: Sequence[EncoderInput], kind: Modality | None = None) -> EncoderRun:
        """Start a run of several inputs that fit one batch (see `batch_work`)."""
        encoder = self._encoder(kind)
        self.n_runs += len(inputs)
        layouts = [
            (encoder.traced.patch_layout(encoder_input.grid_thw), encoder_input.values) for encoder_input in inputs
        ]
        return EncoderRun(encoder.stages, layouts, self.width, encoder.traced.constants)

    def batch_work(self, inputs: Sequence[EncoderInput], kind: Modality | None = None) -> float:
        """Return the multiply-adds of a batch of inputs, or infinity if they do not fit one batch."""
        encoder = self._encoder(kind)
        layouts = [encoder.traced.patch_layout(encoder_input.grid_thw) for encoder_input in inputs]
        work = 0.0
        for stage, own in zip(encoder.stages, zip(*layouts, strict=True), strict=True):
            lengths = [len(layout.order) for layout in own]
            if sum(lengths) > stage.program.max_rows:
                return math.inf
            work += sum(n * sum(row_work(stage.program.running_plan, n)) for n in lengths)
        return work

    def rows(self, encoder_input: EncoderInput, kind: Modality | None = None) -> Float32:
        """Compute all rows of an input, [n, width]."""
        run = self.start_run(encoder_input, kind)
        while (rows := run.advance(math.inf)) is None:
            pass
        return rows

    def cancel(self) -> None:
        """Cancel the current run. Thread-safe."""
        for program in self.programs:
            program.cancel()

    def close(self) -> None:
        """Stop loading weights, then close the file."""
        for program in self.programs:
            program.close()
        self.file.close()

    @property
    def slice_work(self) -> float:
        """Multiply-adds of a slice, about the time of a prefill step."""
        abouts = [program.about for program in self.programs]
        on_gpu = any(is_gpu_backend(about.backend) for about in abouts)
        return GPU_SLICE if on_gpu else SLICE * max(about.threads for about in abouts)

    @property
    def programs(self) -> list[Program]:
        """Programs of all stages."""
        return [stage.program for encoder in self._encoders.values() for stage in encoder.stages]

    def _encoder(self, kind: Modality | None) -> _Encoder:
        if kind is None:
            return next(iter(self._encoders.values()))
        if kind not in self._encoders:
            can = "does not support audio" if kind == "audio" else "does not support images"
            raise RequestError(f"this model {can}: its projector (mmproj file) has no such encoder")
        return self._encoders[kind]


def open_tower(path: Path, backend: str, options: Options) -> Tower:
    """Open the encoders of a projector file on the text model's first GPU, or on the CPU.

    An encoder without GPU kernels or without enough GPU memory runs on the CPU, with a log message.
    """
    file = open_gguf(path)
    programs: list[Program] = []
    try:
        name = backend_for(options.device, backend)
        gpu = _find_gpu(name, path) if options.gpu_layers != 0 else None
        name = "cpu" if name == "auto" or is_gpu_backend(name) else name
        towers = []
        for traced in trace_towers(file):
            own: list[Program] = []
            if gpu is not None:
                own = _on_gpu(gpu, traced, options, path)
            programs += own
            for stage in traced.stages if not own else ():
                its = Options(threads=options.threads, weight_memory=options.weight_memory, max_rows=stage.max_rows)
                programs.append(_compiled(name, stage.plan, traced, its, path))
                own.append(programs[-1])
            for program in own:
                program.load_weights()
            towers.append((traced, own))
        if reason := read_projector(file.metadata).reason:
            log.warning("one of the two encoders of %s is not used: %s", path.name, reason)
        return Tower(file, towers)
    except BaseException:
        for program in programs:
            program.close()
        file.close()
        raise


def _find_gpu(backend: str, path: Path) -> GpuBackend | None:
    """Return the text model's GPU, or None with a log message if its backend does not support encoders."""
    gpu = find_gpu_backend(backend)
    kind = gpu.name if gpu is not None else backend
    if is_gpu_backend(kind) and kind not in TOWER_KINDS:
        log.warning("the encoder of %s runs on the CPU: the %s backend does not support encoders yet", path.name, kind)
        return None
    return gpu


def tower_backend(path: Path) -> str:
    """Return the backend that `auto` selects for the encoders of a projector file: a GPU backend or "cpu"."""
    gpu = find_gpu_backend("auto")
    if gpu is None or gpu.name not in TOWER_KINDS:
        return "cpu"
    return gpu.name if tower_bytes(path, _GPU_ROWS) <= _GPU_SHARE * find_gpu(0, gpu.name).free else "cpu"


def _on_gpu(gpu: GpuBackend, traced: TracedTower, options: Options, path: Path) -> list[Program]:
    """Compile the stages for a GPU; return an empty list, with a log message, if the GPU does not support them.

    The stages share a driver context. K and V are f16, or f32 as on the CPU if the GPU backend is bit-exact.
    """
    programs: list[Program] = []
    try:
        number = parse_devices(options.device)[0] if options.device else None
        device = gpu.open(number)
        try:
            free, needed = device.memory()[0], traced_bytes(traced, _GPU_ROWS)
            kv_type = "f32" if device.kernels.arithmetic == "cpu" else "f16"
        finally:
            device.close()
        if needed > free * _GPU_SHARE:
            raise RequestError(
                f"it needs {needed / 1e9:.1f} GB, more than a quarter of the {free / 1e9:.1f} GB of free GPU memory"
            )
        for stage in traced.stages:
            its = Options(threads=options.threads, kv_type=kv_type, max_rows=max(stage.max_rows, _GPU_ROWS))
            programs.append(gpu.compile_on(gpu.open(number), stage.plan, traced.tensors, its))
        return programs
    except (DeviceError, RequestError, UnsupportedError) as error:
        for program in programs:
            program.close()
        log.warning("the encoder of %s runs on the CPU: %s", path.name, error)
        return []
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        for program in programs:
            program.close()
        raise ModelError(f"{path}: invalid encoder metadata: {error}") from error


def _compiled(backend: str, plan: Plan, traced: TracedTower, options: Options, path: Path) -> Program:
    """Compile a stage; raise ModelError if the sizes in the file are inconsistent."""
    try:
        return get_backend(backend).compile(plan, traced.tensors, options)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ModelError(f"{path}: invalid encoder metadata: {error}") from error
