"""CheckpointFamily: conversion rules of one architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woolly.convert.config_ledger import Allowed
from woolly.convert.gguf_keys import transformer_keys
from woolly.convert.hyperparameters import Hyperparameters
from woolly.convert.rope import yarn_magnitude, yarn_magnitude_keys
from woolly.convert.tensor_ops import TensorOp

Keys = dict[str, Any]
# Changes of a tensor, by its GGUF name without the block. The last argument is the block number.
Changes = Callable[[Hyperparameters, str, int], "tuple[TensorOp, ...]"]


def _no_keys(config: Hyperparameters, keys: Keys) -> Keys:
    return {}


def _no_tensors(config: Hyperparameters, keys: Mapping[str, Any]) -> dict[str, NDArray[np.float32]]:
    return {}


def _no_shared(config: Hyperparameters) -> Keys:
    return {}


def _no_changes(config: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    return ()


@dataclass(frozen=True)
class CheckpointFamily:
    """Conversion rules of an architecture: its classes, and how it differs from Llama."""

    architecture: str  # general.architecture
    classes: str  # class names in config.json, space-separated
    keys: Callable[[Hyperparameters, Keys], Keys] = _no_keys  # additional or replaced keys; None removes a key
    names: Mapping[str, str] = field(default_factory=dict)  # names within a block
    top: Mapping[str, str] = field(default_factory=dict)  # names outside blocks
    shared: Callable[[Hyperparameters], Keys] = _no_shared  # keys without architecture prefix
    values: Mapping[str, str] = field(default_factory=dict)  # keys of tensors outside blocks that are one number
    changes: Changes = _no_changes
    norm: str = "rms"
    pairs: bool = False  # reorder rows of q and k from NeoX to adjacent rotary pairs
    plus_one: bool = False  # stored norm weights are lower by 1
    # Values of settings without a GGUF key that differ from the common values in `config_ledger.py`.
    settings: Mapping[str, Allowed] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)  # class defaults, for values missing in config.json
    base: Callable[[Hyperparameters, str], Keys] = transformer_keys
    ties: bool = True  # tied embeddings share one table; False: input and output differ by a factor
    computed: Callable[[Hyperparameters, Mapping[str, Any]], dict[str, NDArray[np.float32]]] = (
        _no_tensors  # tensors computed from the configuration
    )
    reads_text: bool = True  # False: tokens only, without verifying a pre-tokenizer
    rename: Callable[[Hyperparameters], str] | None = None  # selects another architecture by the configuration

    def name_for(self, config: Hyperparameters) -> str:
        """Return `general.architecture` of a checkpoint."""
        return self.architecture if self.rename is None else self.rename(config)

    def all_keys(self, config: Hyperparameters) -> Keys:
        """Return the keys without architecture prefix."""
        keys = self.base(config, self.norm)
        keys |= self.keys(config, keys)
        # Families with a log multiplier compute both factors.
        has_multiplier = keys.get("rope.scaling.yarn_log_multiplier")
        if keys.get("rope.scaling.type") == "yarn" and has_multiplier:
            keys |= yarn_magnitude_keys(config, keys)
        elif keys.get("rope.scaling.type") == "yarn":
            keys["rope.scaling.yarn_attn_factor"] = yarn_magnitude(config) or keys.get("rope.scaling.yarn_attn_factor")
        return {name: value for name, value in keys.items() if value is not None}
