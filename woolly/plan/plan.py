"""The Plan: what a model computes, as frozen data. Comparable, printable, never changed after load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from woolly.gguf import GGMLType
from woolly.plan.rope import Rope

__all__ = ["Attribute", "CacheLayer", "Plan", "Rows", "Step", "Value", "Weight"]

Rows = Literal["batch", "output"]
Attribute = int | float | str | Rope


@dataclass(frozen=True)
class Value:
    """One intermediate result: a matrix of f32 with one row per token of the batch."""

    id: int
    width: int
    rows: Rows  # "batch": every token; "output": only the rows whose logits are wanted


@dataclass(frozen=True)
class Weight:
    """A tensor of the file that a step reads."""

    name: str
    type: GGMLType
    shape: tuple[int, ...]  # (rows, columns) of a matrix, (n,) of a vector


@dataclass(frozen=True)
class Step:
    """One op applied to values and weights."""

    op: str
    inputs: tuple[int, ...]  # ids of values, () for the step that reads the batch's tokens
    output: int  # id of the value it makes
    weights: tuple[Weight, ...]
    attributes: tuple[tuple[str, Attribute], ...]
    source: str  # "file.py:line" of the model's own line

    def integer(self, name: str) -> int:
        """An attribute that is a whole number."""
        value = dict(self.attributes)[name]
        assert isinstance(value, int)
        return value

    def number(self, name: str) -> float:
        """An attribute that is a number."""
        value = dict(self.attributes)[name]
        assert isinstance(value, (int, float))
        return float(value)

    def rope(self) -> Rope:
        """The parameters of a rope step."""
        value = dict(self.attributes)["rope"]
        assert isinstance(value, Rope)
        return value


@dataclass(frozen=True)
class CacheLayer:
    """What one attention step keeps of each token."""

    n_kv_heads: int
    head_dim: int

    @property
    def width(self) -> int:
        """Floats per token in K, and as many again in V."""
        return self.n_kv_heads * self.head_dim


@dataclass(frozen=True)
class Plan:
    """A straight list of steps over values and GGUF weight names; the last step makes the logits."""

    architecture: str
    steps: tuple[Step, ...]
    values: tuple[Value, ...]
    cache: tuple[CacheLayer, ...]  # one entry per layer index that an attention step names

    @property
    def n_vocab(self) -> int:
        """Width of the logits."""
        return self.values[self.steps[-1].output].width

    @property
    def weights(self) -> Mapping[str, Weight]:
        """Every weight that some step reads, in order of first use."""
        return {weight.name: weight for step in self.steps for weight in step.weights}

    def cache_bytes_per_token(self, bytes_per_element: float) -> float:
        """Size of K and V of one token over all layers."""
        return sum(2 * layer.width * bytes_per_element for layer in self.cache)
