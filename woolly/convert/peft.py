"""PEFT folders: the settings and the matrices of a LoRA adapter."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from woolly.convert.checkpoint import is_checkpoint, open_checkpoint
from woolly.convert.hyperparameters import Hyperparameters
from woolly.convert.json_files import read_json
from woolly.convert.safetensors import StoredTensor, read_safetensors
from woolly.convert.source import Plain
from woolly.errors import ModelError, UnsupportedError

_HALF = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_(A|B)(?:\.default)?\.weight")
_BASE_LAYER = re.compile(r"(?:base_model\.model\.)?(.+)\.base_layer\.weight")
# Settings that do not change the result of a stored adapter. `fan_in_fan_out` only says that a matrix is transposed.
_HARMLESS = frozenset(
    """
    peft_type task_type auto_mapping peft_version base_model_name_or_path revision inference_mode target_modules
    exclude_modules lora_dropout fan_in_fan_out layers_to_transform layers_pattern megatron_config megatron_core
    loftq_config eva_config corda_config lora_ga_config runtime_config qalora_group_size ensure_weight_tying
    """.split()  # noqa: SIM905  (one word per setting)
)
# Other initializations change the weights of the base model.
_INITIALIZATIONS = (True, False, "gaussian", "eva", "orthogonal")
# Expressions that cannot take long to match: few quantifiers, and none after a group.
_PATTERN = re.compile(r"[\w.\-^$|()\[\]\\*+]{1,200}")


@dataclass(frozen=True)
class LoraPair:
    """Both factors of an adapted matrix; B is to be multiplied by `factor`."""

    a: StoredTensor
    b: StoredTensor
    factor: float = 1.0


@dataclass(frozen=True)
class LoraAdapter:
    """Adapter of a PEFT folder. The product of a pair is scaled by alpha over its rank, as in GGUF files."""

    alpha: float
    pairs: Mapping[str, LoraPair]  # keyed by the adapted matrix, without `.weight`


def read_peft(folder: Path, base: Path) -> LoraAdapter:
    """Read a PEFT folder with an adapter for the checkpoint in `base`."""
    path = folder / "adapter_config.json"
    settings = Hyperparameters(read_json(path, of="PEFT adapter"), str(path))
    if settings.text("peft_type", "LORA").upper() != "LORA":
        raise UnsupportedError(f"{settings.where}: peft_type is {settings.text('peft_type')!r:.40}; expected LORA")
    if settings.text("bias", "none") != "none":
        raise UnsupportedError(f"{settings.where}: the adapter has biases, which GGUF adapters do not support")
    settings.reject("init_lora_weights", unless=(None, *_INITIALIZATIONS))
    scales = _Scales(settings)
    for name, value in settings.unread().items():
        if value and name not in _HARMLESS:
            raise UnsupportedError(f"{settings.where}: {name:.60} is {value!r:.60}, which GGUF adapters do not support")
    pairs = {stem: LoraPair(a, b, scales.factor(stem, a.shape[0])) for stem, (a, b) in _pairs(folder, base).items()}
    return LoraAdapter(scales.alpha, pairs)


class _Scales:
    """Scales of an adapter, which may differ by matrix."""

    def __init__(self, settings: Hyperparameters) -> None:
        self._settings = settings
        self._rank, self._alpha = settings.positive("r"), settings.number("lora_alpha")
        self._root = settings.flag("use_rslora")  # rsLoRA divides by the square root of the rank
        self._ranks, self._alphas = settings.mapping("rank_pattern"), settings.mapping("alpha_pattern")
        for pattern in (*self._ranks, *self._alphas):
            self._check(pattern)
        self.alpha = (self._alpha * math.sqrt(self._rank) if self._root else self._alpha) or 1.0

    def factor(self, stem: str, rank: int) -> float:
        """Return the factor between a matrix's own scale and `alpha` over its rank."""
        where = self._settings
        wanted = where.inner({"r": self._own(self._ranks, stem, self._rank)}).positive("r")
        if wanted != rank:
            raise ModelError(f"{where.where}: {stem:.90} has rank {rank}, but r or rank_pattern says {wanted}")
        alpha = where.inner({"lora_alpha": self._own(self._alphas, stem, self._alpha)}).number("lora_alpha")
        return alpha * (math.sqrt(rank) if self._root else 1.0) / self.alpha

    def _own(self, patterns: Mapping[str, Any], stem: str, usual: Any) -> Any:
        """Return the value of the first pattern that matches the end of a name, as PEFT does."""
        return next((x for one, x in patterns.items() if re.fullmatch(rf"(.*\.)?({one})", stem)), usual)

    def _check(self, pattern: str) -> None:
        quantifiers = sum(pattern.count(one) for one in "*+")
        if not _PATTERN.fullmatch(pattern) or quantifiers > 3 or re.search(r"[)*+][*+]", pattern):
            raise UnsupportedError(
                f"{self._settings.where}: the pattern {pattern!r:.60} is not supported; list the names of the layers"
            )
        try:
            re.compile(pattern)
        except re.error as error:
            raise ModelError(f"{self._settings.where}: the pattern {pattern!r:.60} is not valid: {error}") from None


def _pairs(folder: Path, base: Path) -> dict[str, tuple[StoredTensor, StoredTensor]]:
    """Return both factors of each adapted matrix."""
    halves: dict[str, dict[str, StoredTensor]] = {}
    for name, stored in read_safetensors(folder / "adapter_model.safetensors").items():
        if copy := _BASE_LAYER.fullmatch(name):
            _check_copy(folder, base, copy[1], stored)
            continue
        if "lora_embedding_" in name:
            raise UnsupportedError(
                f"{folder}: the adapter changes the token embeddings ({name:.90}), which is not supported; train it"
                " without embed_tokens"
            )
        found = _HALF.fullmatch(name)
        if found is None or len(stored.shape) != 2:
            raise UnsupportedError(f"{folder}: the adapter has {name!r:.120}, which is neither lora_A nor lora_B")
        halves.setdefault(found[1], {})[found[2]] = stored
    out = {}
    for stem, both in halves.items():
        if set(both) != {"A", "B"} or both["A"].shape[0] != both["B"].shape[1]:
            raise ModelError(f"{folder}: lora_A and lora_B of {stem!r:.90} do not match, or one is missing")
        out[stem] = (both["A"], both["B"])
    if not out:
        raise ModelError(f"{folder}: the adapter has no LoRA matrices")
    return out


def _check_copy(folder: Path, base: Path, stem: str, stored: StoredTensor) -> None:
    """Check that the layer of the base model that PEFT stores next to an adapted head or table is unchanged."""
    if not is_checkpoint(base):
        raise UnsupportedError(
            f"{folder}: the adapter has a copy of {stem:.90}, and {base} has no weights to compare it with; download"
            " them too"
        )
    original = open_checkpoint(base).tensors.get(f"{stem}.weight")
    if original is None:
        return  # tied to the token embeddings, so the factors of this layer are rejected
    if not np.array_equal(Plain(original).floats(), Plain(stored).floats()):
        raise UnsupportedError(
            f"{folder}: the adapter has its own {stem:.90}, which differs from the one in {base}; GGUF adapters do not"
            " support trained modules"
        )
