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
    shape: tuple[int, ...]  # (rows, columns) of a matrix, (n,) of a vector, (experts, rows, columns)


@dataclass(frozen=True)
class Step:
    """One op applied to values and weights."""

    op: str
    inputs: tuple[int, ...]  # ids of values, () for the step that reads the batch's tokens
    outputs: tuple[int, ...]  # ids of the values it makes; one, but for fused steps
    weights: tuple[Weight, ...]
    attributes: tuple[tuple[str, Attribute], ...]
    source: str  # "file.py:line" of the model's own line

    @property
    def output(self) -> int:
        """The value of a step that makes one."""
        (value,) = self.outputs
        return value

    def text(self, name: str) -> str:
        """An attribute that is text."""
        value = dict(self.attributes)[name]
        assert isinstance(value, str)
        return value

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

    def rope(self) -> Rope | None:
        """The parameters of a step that turns; None where it turns nothing."""
        value = dict(self.attributes)["rope"]
        return value if isinstance(value, Rope) else None

    def by_role(self, role: str) -> list[Weight]:
        """Weights of a fused step that play the given role, in order."""
        return [w for w, r in zip(self.weights, self.text("roles").split(), strict=True) if r == role]

    @property
    def matrices(self) -> list[Weight]:
        """Weights that a linears or moe step multiplies with, in order; of other steps none."""
        if self.op not in ("linears", "moe"):
            return []
        roles = self.text("roles").split()
        return [w for w, role in zip(self.weights, roles, strict=True) if role not in ("norm", "bias")]

    def used_share(self, weight: Weight) -> float:
        """The part of a matrix that one row is multiplied with: of a tensor of experts those that it goes to."""
        return self.integer("n_used") / weight.shape[0] if len(weight.shape) == 3 else 1.0


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
