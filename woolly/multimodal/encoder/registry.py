"""Registry of encoder families, which traces a projector file to encoder plans.

Each module in this folder with `PROJECTORS`, a tuple of `clip.projector_type` values, is a family. A vision family has
`build` (one plan) or `vision_stages` (several plans), an audio family has `stages`. `patch_layout` returns the order of
patches or frames. Optional: `remake` derives tensors, `constants` computes constant prompt rows, `CONSTANTS` names
constant rows stored in the file, and `max_patches` returns the size of the largest image.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly.errors import ModelError, PlanError, UnsupportedError
from woolly.gguf.keys import Keys
from woolly.multimodal import MAX_PATCHES, AudioSettings, VisionSettings, families, read_projector
from woolly.multimodal.encoder.derived_tensors import as_matrix, f32_tensor, transposed
from woolly.multimodal.encoder.params import AudioParams, TowerParams, read_audio_params, read_tower
from woolly.multimodal.encoder.stage import StageBuilder, TowerStage
from woolly.plan import Plan, Tracer

if TYPE_CHECKING:
    from woolly.gguf import GGUFFile, Tensor
    from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout
    from woolly.multimodal.encoder.transducer import TracedTransducer

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
    module = _module(settings.projector, "build", "vision_stages")
    tensors = _shaped(file, getattr(module, "TRANSPOSED", ()))
    params = read_tower(keys, settings, tensors)
    if hasattr(module, "remake"):
        tensors |= module.remake(params)
    one = hasattr(module, "build")
    builders = (StageBuilder(module.build, ("",)),) if one else module.vision_stages(params)
    n_rows = _max_patches(module, params) + 1 + settings.n_queries
    if n_rows > _MAX_IMAGE_ROWS:
        raise ModelError(f"the largest image would have {n_rows} encoder rows; the maximum is {_MAX_IMAGE_ROWS}")
    left, stages = dict(tensors), list[TowerStage]()
    for builder in builders:
        own = {name: left.pop(name) for name in list(left) if name.startswith(builder.names)}
        tracer = Tracer(f"clip {settings.projector}", own, is_tower=True)
        builder.build(tracer, params)
        plan, most = tracer.plan(), -(-n_rows // builder.patches)
        stages.append(TowerStage(plan, most if _is_whole(plan) else min(most, _MAX_ROWS)))
    if hasattr(module, "constants"):
        constants = module.constants(params)
    else:
        constants = _constants(file, getattr(module, "CONSTANTS", ()), stages[-1].plan.width)

    def patch_layout(grid: Grid) -> tuple[PatchLayout, ...]:
        found = module.patch_layout(params, grid)
        arranged = (found,) if one else found
        return tuple(_within_tables(stage.plan, each) for stage, each in zip(stages, arranged, strict=True))

    return TracedTower(tuple(stages), settings, tensors, params, patch_layout, constants)


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


def _max_patches(module: ModuleType, hp: TowerParams) -> int:
    """Return the maximum number of patches: from the family, else from the file's maximum pixels, within a bound."""
    if hasattr(module, "max_patches"):
        return int(module.max_patches(hp))
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
    module = _module(settings.projector, "stages")
    tensors = _filters_shaped({name: one for name, one in file.tensors.items() if name.startswith(_AUDIO)})
    params = read_audio_params(keys, settings, tensors)
    if hasattr(module, "remake"):
        tensors |= module.remake(params)
    constants = module.constants(params) if hasattr(module, "constants") else None
    builders = module.stages(params)
    return _staged(tensors, params, builders, lambda grid: module.patch_layout(params, grid), constants)


def trace_audio_tower(
    tensors: dict[str, Tensor],
    params: AudioParams,
    builders: Sequence[StageBuilder],
    patch_layout: Callable[[Grid], tuple[PatchLayout, ...]],
    remake: Callable[[AudioParams], dict[str, Tensor]] | None = None,
) -> TracedTower:
    """Trace an audio encoder that is stored in the model's file; `remake` derives tensors."""
    shaped = _filters_shaped(tensors)
    if remake is not None:
        shaped |= remake(replace(params, tensors=shaped))
    return _staged(shaped, params, builders, patch_layout)


def _staged(
    tensors: dict[str, Tensor],
    params: AudioParams,
    builders: Sequence[StageBuilder],
    patch_layout: Callable[[Grid], tuple[PatchLayout, ...]],
    constants: npt.NDArray[np.float32] | None = None,
) -> TracedTower:
    settings = params.settings
    left, stages = dict(tensors), list[TowerStage]()
    for builder, arranged in zip(builders, patch_layout((1, 1, settings.family.max_frames)), strict=True):
        own = {name: left.pop(name) for name in list(left) if name.startswith(builder.names)}
        tracer = Tracer(f"clip {settings.projector}", own, is_tower=True, ignored=())
        builder.build(tracer, params)
        plan, n_rows = tracer.plan(), len(arranged.order)
        _within_tables(plan, arranged)  # shorter clips use no other indices
        brought = arranged.order[:1].size * (arranged.unit or (stages[-1].plan.width if stages else params.patch))
        if brought != (reads := plan.values[plan.steps[0].output].width):
            raise ModelError(f"a stage reads rows of {reads} numbers, but the previous stage returns {brought}")
        stages.append(TowerStage(plan, n_rows if _is_whole(plan) else min(n_rows, _MAX_ROWS)))
    return TracedTower(tuple(stages), settings, tensors, params, patch_layout, constants)


def _shaped(file: GGUFFile, transposed_names: tuple[str, ...]) -> dict[str, Tensor]:
    """Return the tensors with patch convolutions reshaped to matrices and `transposed_names` transposed."""
    out = dict(file.tensors)
    for name, tensor in file.tensors.items():
        if name.startswith("v.patch_embd.weight") and len(tensor.shape) > 2 and tensor.type.block_size == 1:
            out[name] = as_matrix(tensor)
        elif name in transposed_names and len(tensor.shape) == 2:
            out[name] = transposed(tensor)
    return out


def _filters_shaped(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
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


def _module(projector: str, *what: str) -> ModuleType:
    for found in pkgutil.iter_modules(families.__path__):
        module = importlib.import_module(f"{families.__name__}.{found.name}")
        if projector in getattr(module, "PROJECTORS", ()) and any(hasattr(module, one) for one in what):
            return module
    raise UnsupportedError(f"the projector type {projector!r} is not supported yet")
