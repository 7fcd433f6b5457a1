"""Tracing of the encoders of a projector file to plans."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly.errors import ModelError, PlanError, UnsupportedError
from woolly.gguf.keys import Keys
from woolly.multimodal import MAX_PATCHES, AudioSettings, VisionSettings, read_projector
from woolly.multimodal.encoder.derived_tensors import as_matrix, f32_tensor, transposed
from woolly.multimodal.encoder.params import AudioParams, TowerParams, read_audio_params, read_tower
from woolly.multimodal.encoder.stage import StageBuilder, TowerStage
from woolly.plan import Plan, Tracer

if TYPE_CHECKING:
    from woolly.gguf import GGUFFile, Tensor
    from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout
    from woolly.multimodal.encoder.transducer import TracedTransducer
    from woolly.multimodal.family import VisionFamily

_AUDIO = ("a.", "mm.a.")  # name prefixes of an audio encoder
_MAX_IMAGE_ROWS = 8 * MAX_PATCHES  # maximum rows per run of an image
_MAX_ROWS = 2048  # maximum rows per run of a stage without attention; 35 MB for the widest convolutions


@dataclass(frozen=True, eq=False)
class TracedTower:
    """Plans of an encoder, and the data needed to run them."""

    stages: tuple[TowerStage, ...]
    settings: VisionSettings | AudioSettings
    tensors: Mapping[str, Tensor]  # tensors of the file, in the shapes that the plans read
    params: TowerParams | AudioParams
    patch_layout: Callable[[Grid], tuple[PatchLayout, ...]]
    # [n, width]: constant rows of the file, such as the end of a line, placed after the rows of every input.
    constants: npt.NDArray[np.float32] | None = None
    decoder: TracedTransducer | None = None  # of CTC and transducer models

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Plans of the stages, in order."""
        return tuple(stage.plan for stage in self.stages)

    @property
    def width(self) -> int:
        """Columns of an output row."""
        return self.stages[-1].plan.width


def trace_towers(file: GGUFFile) -> tuple[TracedTower, ...]:
    """Trace the encoders of a file with `general.architecture` clip: vision, audio, or both."""
    try:
        projector = read_projector(file.metadata)
        keys = Keys(file.metadata, "clip")
        vision = () if projector.vision is None else (_trace_vision(file, keys, projector.vision),)
        audio = () if projector.audio is None else (_trace_audio(file, keys, projector.audio),)
        return vision + audio
    except (ModelError, PlanError, UnsupportedError) as error:
        raise type(error)(f"{file.path}: {error}") from None
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise ModelError(f"{file.path}: cannot build the encoder from the metadata: {error}") from error


def _trace_vision(file: GGUFFile, keys: Keys, settings: VisionSettings) -> TracedTower:
    family = settings.family
    tensors = _shaped(file, family.transposed)
    params = read_tower(keys, settings, tensors)
    if family.remake is not None:
        tensors |= family.remake(params)
    builders = _builders(family, params)
    n_rows = _max_patches(params) + 1 + settings.n_queries
    if n_rows > _MAX_IMAGE_ROWS:
        raise ModelError(f"the largest image would have {n_rows} encoder rows; the maximum is {_MAX_IMAGE_ROWS}")
    left, stages = dict(tensors), list[TowerStage]()
    for builder in builders:
        own = {name: left.pop(name) for name in list(left) if name.startswith(builder.names)}
        tracer = Tracer(f"clip {settings.projector}", own, is_tower=True)
        builder.build(tracer, params)
        plan, most = tracer.plan(), -(-n_rows // builder.patches)
        stages.append(TowerStage(plan, most if _is_whole(plan) else min(most, _MAX_ROWS)))
    if family.constants is not None:
        constants: npt.NDArray[np.float32] | None = family.constants(params)
    else:
        constants = _constants(file, family.constant_names, stages[-1].plan.width)

    def patch_layout(grid: Grid) -> tuple[PatchLayout, ...]:
        found = family.patch_layout(params, grid)
        layouts = found if isinstance(found, tuple) else (found,)
        return tuple(_within_tables(stage.plan, each) for stage, each in zip(stages, layouts, strict=True))

    return TracedTower(tuple(stages), settings, tensors, params, patch_layout, constants)


def _builders(family: VisionFamily, params: TowerParams) -> tuple[StageBuilder, ...]:
    if family.stages is not None:
        return family.stages(params)
    assert family.build is not None, family.name
    return (StageBuilder(family.build, ("",)),)


def _is_whole(plan: Plan) -> bool:
    """True if rows attend to each other, so that one run must contain all rows."""
    return bool(plan.paged) or any(step.kind.whole for step in plan.steps)


def _within_tables(plan: Plan, arranged: PatchLayout) -> PatchLayout:
    """Return the layout. Raise ValueError for indices outside a table, which mean that sizes in the file are
    inconsistent.
    """
    if arranged.gather_rows is not None and arranged.gather_rows.size:
        highest = arranged.gather_rows.max(axis=0)
        for step in (one for one in plan.steps if one.op == "embedding_bag"):
            first, n_places = step.integer("first"), step.weights[0].shape[0]
            if (highest[first : first + step.integer("taps")] >= n_places).any():
                raise ValueError(f"{step.weights[0].tensor} has {n_places} rows, but the input needs more")
    return arranged


def _max_patches(hp: TowerParams) -> int:
    """Return the maximum number of patches: from the family, else from the file's maximum pixels, within a bound."""
    if hp.settings.family.max_patches is not None:
        return hp.settings.family.max_patches(hp)
    pixels = hp.settings.max_pixels
    return max(hp.side**2, min(pixels // hp.settings.patch_size**2 if pixels else MAX_PATCHES, MAX_PATCHES))


def _constants(file: GGUFFile, names: tuple[str, ...], width: int) -> npt.NDArray[np.float32] | None:
    """Return the constant prompt rows stored in the file, or None if there are none."""
    found = [file.tensors[name].dequantize().reshape(-1) for name in names if name in file.tensors]
    for row in found:
        if len(row) != width:
            raise ModelError(f"a constant prompt row has {len(row)} numbers, but the encoder returns {width}")
    return np.stack(found).astype(np.float32) if found else None


def _trace_audio(file: GGUFFile, keys: Keys, settings: AudioSettings) -> TracedTower:
    tensors = {name: one for name, one in file.tensors.items() if name.startswith(_AUDIO)}
    return trace_audio_tower(read_audio_params(keys, settings, tensors))


def trace_audio_tower(given: AudioParams) -> TracedTower:
    """Trace an audio encoder of a projector file or of a speech-to-text model; `given` has the tensors of the file."""
    settings, family = given.settings, given.settings.family
    tensors = _filters_shaped(given.tensors)
    params = replace(given, tensors=tensors)  # the same mapping, to which derived tensors are added
    if family.remake is not None:
        tensors |= family.remake(params)
    constants = None if family.constants is None else family.constants(params)
    left, stages = dict(tensors), list[TowerStage]()
    longest = family.patch_layout(params, (1, 1, family.max_frames))
    for builder, arranged in zip(family.stages(params), longest, strict=True):
        own = {name: left.pop(name) for name in list(left) if name.startswith(builder.names)}
        tracer = Tracer(f"clip {settings.projector}", own, is_tower=True, ignored=())
        builder.build(tracer, params)
        plan, n_rows = tracer.plan(), len(arranged.order)
        _within_tables(plan, arranged)  # shorter clips use no other indices
        brought = arranged.order[:1].size * (arranged.unit or (stages[-1].plan.width if stages else params.patch))
        if brought != (reads := plan.values[plan.steps[0].output].width):
            raise ModelError(f"a stage reads rows of {reads} numbers, but the previous stage returns {brought}")
        stages.append(TowerStage(plan, n_rows if _is_whole(plan) else min(n_rows, _MAX_ROWS)))
    return TracedTower(tuple(stages), settings, tensors, params, partial(family.patch_layout, params), constants)


def _shaped(file: GGUFFile, transposed_names: tuple[str, ...]) -> dict[str, Tensor]:
    """Return the tensors with patch convolutions reshaped to matrices and `transposed_names` transposed."""
    out = dict(file.tensors)
    for name, tensor in file.tensors.items():
        if name.startswith("v.patch_embd.weight") and len(tensor.shape) > 2 and tensor.type.block_size == 1:
            out[name] = as_matrix(tensor)
        elif name in transposed_names and len(tensor.shape) == 2:
            out[name] = transposed(tensor)
    return out


def _filters_shaped(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with convolutions reshaped to matrices, columns ordered by tap, then channel."""
    out = dict(tensors)
    for name, tensor in tensors.items():
        if not name.startswith(("a.conv1d.", "a.conv2d.")):
            continue
        if name.endswith(".bias"):
            out[name] = replace(tensor, shape=(math.prod(tensor.shape),))
        elif len(tensor.shape) > 2:
            array = np.moveaxis(tensor.dequantize().reshape(tensor.shape), 1, -1)
            out[name] = f32_tensor(name, array.reshape(len(array), -1))
    if "a.conv_out.weight" in out and "a.conv2d.3.weight" in out:
        # Files order columns by channel, then mel bin, but rows by mel bin, then channel.
        weight = out["a.conv_out.weight"].dequantize()
        channels = out["a.conv2d.3.weight"].shape[0]
        swapped = weight.reshape(len(weight), channels, -1).swapaxes(1, 2)
        out["a.conv_out.weight"] = f32_tensor("a.conv_out.weight", swapped.reshape(weight.shape))
    return out
