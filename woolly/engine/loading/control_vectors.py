"""Control vectors: directions in GGUF files that are added to the outputs of a model's layers."""

from __future__ import annotations

import hashlib
import math
import numbers
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from woolly.engine.loading.adapters import scaled_file
from woolly.errors import ModelError, RequestError
from woolly.gguf import GGUFFile, MemoryMap, Tensor, open_gguf, text_of
from woolly.plan import Plan, Weight
from woolly.plan.passes.control_vectors import add_control_vectors
from woolly.quant import GGMLType
from woolly.store import resolve

Float32 = npt.NDArray[np.float32]
Scaled = Sequence[tuple[str | os.PathLike[str], float]]

_FIELD = "control_vectors"


def scaled_files(given: object) -> Scaled:
    """Return files with their scales, from a mapping or from a list of files (scale 1) or (file, scale) pairs."""
    if given is None:
        return ()
    if isinstance(given, Mapping):
        given = list(given.items())
    if isinstance(given, (str, os.PathLike)):
        given = [given]
    if not isinstance(given, Sequence):
        raise RequestError(f"{_FIELD} is {given!r}; expected files, or a mapping of files to scales")
    return [_scaled(one) for one in given]


def _scaled(one: Any) -> tuple[str | os.PathLike[str], float]:
    file, scale = one if isinstance(one, (tuple, list)) and len(one) == 2 else (one, 1.0)
    if not isinstance(file, (str, os.PathLike)):
        raise RequestError(f"{_FIELD} has {one!r}; expected a file or a (file, scale) pair", field=_FIELD)
    if isinstance(scale, bool) or not isinstance(scale, numbers.Real) or not math.isfinite(scale):
        raise RequestError(f"the scale of {file} is {scale!r}; expected a number", field=_FIELD)
    return file, float(scale)


def vectors_of(whole: Sequence[str], scaled: Sequence[str]) -> tuple[tuple[str, float], ...]:
    """Return the files of --control-vector and --control-vector-scaled (FILE:SCALE), with their scales."""
    return (*((file, 1.0) for file in whole), *(scaled_file(text, "control_vector_scaled") for text in scaled))


def layer_range(text: str) -> tuple[int, int]:
    """Parse START:END, with both ends included."""
    found = re.fullmatch(r"(\d+):(\d+)", text)
    if found is None:
        raise RequestError(
            f"control_vector_layer_range is {text!r}; expected START:END, such as 10:20",
            field="control_vector_layer_range",
        )
    return int(found[1]), int(found[2])


def steered(plan: Plan, files: Scaled, layers: tuple[int, int] | None) -> tuple[Plan, dict[str, Tensor], bytes]:
    """Return the plan with the sum of all directions, the tensors by name, and the digest of the directions.

    `layers` are the first and the last steered layer (None: all). The first layer of a model is never steered.
    """
    first, last = _checked_range(layers)
    total: dict[int, Float32] = {}
    for path, scale in files:
        with open_gguf(resolve(path)) as file:
            for layer, direction in _directions(file).items():
                if first <= layer <= last:
                    total[layer] = total.get(layer, np.float32(0)) + direction * np.float32(scale)
            try:
                add_control_vectors(plan, {f"blk.{n}": _weight(n, one) for n, one in _directions(file).items()})
            except ModelError as error:
                raise ModelError(f"{file.path}: {error}") from None
    digest = hashlib.sha256()
    for layer, direction in sorted(total.items()):
        digest.update(b"%d:" % layer + direction.tobytes())
    plan = add_control_vectors(plan, {f"blk.{n}": _weight(n, one) for n, one in total.items()})
    return plan, {_name(n): _tensor(n, one) for n, one in total.items()}, digest.digest()


def _checked_range(layers: tuple[int, int] | None) -> tuple[int, int]:
    if layers is None:
        return 1, 1 << 31
    whole = (
        [not isinstance(n, bool) and isinstance(n, int) for n in layers] if isinstance(layers, (tuple, list)) else []
    )
    if len(whole) != 2 or not all(whole) or not 0 <= layers[0] <= layers[1]:
        raise RequestError(
            f"control_vector_layers is {layers!r}; expected the first and last layer, such as (10, 20)",
            field="control_vector_layers",
        )
    return layers[0], layers[1]


def _directions(file: GGUFFile) -> dict[int, Float32]:
    """Return the direction of each layer."""
    if text_of(file.metadata, "general.architecture") != "controlvector":
        raise ModelError(f"{file.path}: not a control vector (see general.architecture)")
    out: dict[int, Float32] = {}
    for tensor in file.tensors.values():
        found = re.fullmatch(r"direction\.(\d+)", tensor.name)
        if found is None or int(found[1]) == 0:
            raise ModelError(
                f"{file.path}: unsupported tensor {tensor.name!r}; expected direction.N with N of at least 1"
            )
        if len(tensor.shape) != 1 or tensor.type is not GGMLType.F32:
            raise ModelError(
                f"{file.path}: {tensor.name!r} is {tensor.type.name} of shape {tensor.shape}; expected an F32 vector"
            )
        values = tensor.dequantize()
        if not np.isfinite(values).all():
            raise ModelError(f"{file.path}: {tensor.name!r} has values that are not finite")
        out[int(found[1])] = values
    if not out:
        raise ModelError(f"{file.path}: the control vector has no directions")
    return out


def _name(layer: int) -> str:
    return f"blk.{layer}.direction"


def _weight(layer: int, direction: Float32) -> Weight:
    return Weight(_name(layer), GGMLType.F32, direction.shape)


def _tensor(layer: int, direction: Float32) -> Tensor:
    return Tensor(_name(layer), GGMLType.F32, direction.shape, 0, MemoryMap(_name(layer), direction))
