"""CheckpointFamily: how the checkpoints of one architecture become a GGUF file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woolly.convert.hyperparameters import Hyperparameters
from woolly.convert.keys import transformer_keys
from woolly.convert.ledger import Allowed
from woolly.convert.ops import TensorOp
from woolly.convert.rope import yarn_magnitude

Keys = dict[str, Any]
# Changes of one tensor by its GGUF name without the block; the number is that of the block.
Changes = Callable[[Hyperparameters, str, int], "tuple[TensorOp, ...]"]


def _no_keys(config: Hyperparameters, keys: Keys) -> Keys:
    return {}


def _no_tensors(config: Hyperparameters, keys: Mapping[str, Any]) -> dict[str, NDArray[np.float32]]:
    return {}


def _no_changes(config: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    return ()


@dataclass(frozen=True)
class CheckpointFamily:
    """One architecture: the classes that it is known by, and what differs from Llama."""

    architecture: str  # general.architecture
    classes: str  # of config.json, separated by spaces
    keys: Callable[[Hyperparameters, Keys], Keys] = _no_keys  # further keys, or other values; None takes one away
    names: Mapping[str, str] = field(default_factory=dict)  # of a block
    top: Mapping[str, str] = field(default_factory=dict)  # outside blocks
    changes: Changes = _no_changes
    norm: str = "rms"
    pairs: bool = False  # rows of q and k go from NeoX to adjacent rotary pairs
    plus_one: bool = False  # norms of the checkpoint are 1 lower
    # Values of settings that no key says, where they differ from the usual ones: `ledger.py`.
    settings: Mapping[str, Allowed] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)  # values that config.json may leave to its class
    base: Callable[[Hyperparameters, str], Keys] = transformer_keys
    ties: bool = (
        True  # a checkpoint that says so has one table for tokens and logits; False: two that differ by a factor
    )
    computed: Callable[[Hyperparameters, Mapping[str, Any]], dict[str, NDArray[np.float32]]] = (
        _no_tensors  # from the configuration alone
    )
    reads_text: bool = True  # False: tokens are written alone, so that no way of splitting text is proved
    rename: Callable[[Hyperparameters], str] | None = None  # another architecture, if the configuration says so

    def name_for(self, config: Hyperparameters) -> str:
        """`general.architecture` of a checkpoint."""
        return self.architecture if self.rename is None else self.rename(config)

    def all_keys(self, config: Hyperparameters) -> Keys:
        """The hyperparameters, without the architecture's name before them."""
        keys = self.base(config, self.norm)
        keys |= self.keys(config, keys)
        # Families with a multiplier of the logarithm compute both factors by themselves.
        if keys.get("rope.scaling.type") == "yarn" and "rope.scaling.yarn_log_multiplier" not in keys:
            keys["rope.scaling.yarn_attn_factor"] = yarn_magnitude(config) or keys.get("rope.scaling.yarn_attn_factor")
        return {name: value for name, value in keys.items() if value is not None}
