"""Plan: the computation of a model as immutable, comparable, printable data."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from woolly.plan.ops.table import OPS, Cost, Load, Op
from woolly.plan.rope_scaling import Rope
from woolly.plan.state import Paged, Slot

if TYPE_CHECKING:
    from woolly.quant import GGMLType

Rows = Literal["batch", "output"]
# Result of the last step: logits per output row, or embeddings or scores of complete sequences.
Result = Literal["logits", "embeddings", "scores"]
# Pooling of a sequence's rows; "rank": a vector that a classifier head maps to scores.
Pooling = Literal["none", "mean", "cls", "last", "rank"]
Attribute = int | float | str | Rope


@dataclass(frozen=True)
class MaskedDiffusion:
    """Decoding of a masked diffusion model: answers begin as masks, which are filled in by their logits."""

    mask: int  # mask token
    is_shifted: bool  # row i of the logits predicts the token at position i + 1, not i


@dataclass(frozen=True)
class Value:
    """One intermediate result: a matrix of f32 with one row per token of the batch."""

    id: int
    width: int
    rows: Rows  # "batch": every token; "output": only the rows with requested logits


@dataclass(frozen=True)
class Weight:
    """Tensor of the file that a step reads, or a range of its rows if the name ends in "[first:last]"."""

    name: str
    type: GGMLType
    shape: tuple[int, ...]  # (rows, columns) of a matrix, (n,) of a vector, (experts, rows, columns)

    @property
    def tensor(self) -> str:
        """Name of the tensor in the file."""
        return self.name.partition("[")[0]

    @property
    def n_bytes(self) -> int:
        """Size in the file."""
        return self.type.row_bytes(self.shape[-1]) * math.prod(self.shape[:-1])


@dataclass(frozen=True)
class Step:
    """One op applied to values and weights."""

    op: str
    inputs: tuple[int, ...]  # ids of values, () for the step that reads the batch's tokens
    outputs: tuple[int, ...]  # ids of the computed values: several only in fused steps
    weights: tuple[Weight, ...]
    attributes: tuple[tuple[str, Attribute], ...]
    source: str  # "file.py:line" of the line in the model file

    @property
    def output(self) -> int:
        """Output of a step with a single output."""
        (value,) = self.outputs
        return value

    def text(self, name: str) -> str:
        """Return a string attribute."""
        value = dict(self.attributes)[name]
        assert isinstance(value, str)
        return value

    def integer(self, name: str) -> int:
        """Return an integer attribute."""
        value = dict(self.attributes)[name]
        assert isinstance(value, int)
        return value

    def number(self, name: str) -> float:
        """Return a numeric attribute."""
        value = dict(self.attributes)[name]
        assert isinstance(value, (int, float))
        return float(value)

    def rope(self) -> Rope | None:
        """Return the rotary parameters, or None for a step without rope."""
        value = dict(self.attributes).get("rope")
        return value if isinstance(value, Rope) else None

    @property
    def kind(self) -> Op:
        """Row of the step's op in the op table."""
        return OPS[self.op]

    @property
    def roles(self) -> list[str]:
        """Role of each weight."""
        if listed := dict(self.attributes).get("roles"):
            return str(listed).split()
        return [role.rstrip("?") for role in self.kind.weights[: len(self.weights)]]

    def by_role(self, *roles: str) -> list[Weight]:
        """Return the weights with one of the given roles, in order."""
        return [weight for weight, role in zip(self.weights, self.roles, strict=True) if role in roles]

    @property
    def matrices(self) -> list[Weight]:
        """Matrices of the step, in order."""
        return self.by_role(*self.kind.matrices)

    @property
    def part(self) -> str:
        """Part of a model that the step belongs to."""
        part = self.kind.part
        return part if isinstance(part, str) else part(self)

    @property
    def reads(self) -> set[str]:
        """State that the step reads."""
        return {name.format_map(dict(self.attributes)) for name in self.kind.reads}

    @property
    def writes(self) -> set[str]:
        """State and shared scratch memory that the step changes."""
        return {name.format_map(dict(self.attributes)) for name in self.kind.writes + self.kind.scratch}

    def cost(self, plan: Plan, load: Load) -> Cost:
        """Return the cost of the step for one run."""
        return self.kind.cost(plan, self, load)

    def used_share(self, weight: Weight) -> float:
        """Return the share of a weight that one row uses: the selected experts of an expert tensor, otherwise 1."""
        if weight in self.by_role(*self.kind.rare):
            return 0.0
        is_chosen = len(weight.shape) == 3 and "n_used" in self.kind.attributes
        return min(1.0, self.integer("n_used") / weight.shape[0]) if is_chosen else 1.0

    def row_bytes(self) -> int:
        """Bytes of weights read for one row, counting only selected experts."""
        return round(sum(weight.n_bytes * self.used_share(weight) for weight in self.weights))


@dataclass(frozen=True)
class Injection:
    """Differences between token rows and image or audio rows, as defined by each model file."""

    is_scaled: bool = False  # a factor on token embeddings applies to injected rows too
    causal: Literal["no", "global layers", "all layers"] = "no"  # layers in which rows of an image are causal, as text
    # Part of an injected row that is added to the input of each layer; -1: none. Empty: the parts after the first are
    # added to the outputs of the first layers.
    layers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Plan:
    """Linear list of steps over values and GGUF weight names. The last step computes the result."""

    architecture: str
    steps: tuple[Step, ...]
    values: tuple[Value, ...]
    state: tuple[Paged | Slot, ...]  # state between runs; the attribute "entry" of a step is an index into it
    result: Result = "logits"
    pooling: Pooling | None = None  # None for logits; "none": a vector for each output row
    labels: tuple[str, ...] = ()  # names of the score columns, if the file has them
    positions: int | None = None  # positions up to which the plan equals the model; None: all
    # Plan of the multi-token-prediction blocks: from the value `features` and the token after each row, it computes the
    # logits of the following token. Its state is separate.
    draft: Plan | None = None
    borrows: bool = False  # whether the draft reads the state of the main model and has none itself
    # For drafts that predict several tokens in parallel: the mask token, and the maximum number of masks.
    mask: int | None = None
    n_masks: int = 0
    features: int | None = None  # value that a draft reads; None: the input of `output_rows`
    transcribes: bool = False  # speech-to-text model
    diffusion: MaskedDiffusion | None = None  # None: an answer grows token by token
    injection: Injection = Injection()
    is_part: bool = False  # part of a larger plan; values have the same rows as in that plan

    def __repr__(self) -> str:
        return f"Plan({self.architecture!r}, {len(self.steps)} steps, {self.n_layers} layers; print shows them)"

    def __str__(self) -> str:
        from woolly.plan.show import show  # imports this module

        return show(self, fold=True)

    @cached_property
    def n_tokens(self) -> int:
        """Vocabulary size: rows of the token embedding, or 0 for an encoder without one."""
        return next((step.weights[0].shape[0] for step in self.steps if step.op == "embed"), 0)

    @property
    def width(self) -> int:
        """Width of the result."""
        return self.values[self.steps[-1].output].width

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return len(set(self.layers) - {""})

    @property
    def is_causal(self) -> bool:
        """True if attention is causal. Otherwise a sequence must be complete in one batch, and nothing is cached."""
        return not any(dict(step.attributes).get("mask") in ("all", "block") for step in self.steps)

    @property
    def has_source(self) -> bool:
        """True for encoder-decoder models: the encoder's rows come first in a sequence."""
        return self.transcribes or any(dict(step.attributes).get("mask") == "before" for step in self.steps)

    @property
    def layers(self) -> tuple[str, ...]:
        """The layer ("blk.3") of each step, "" outside of layers.

        A step without weights belongs to the layer of the previous step, unless it selects the rows of the head.
        """
        out: list[str] = []
        for step in self.steps:
            found = next((m[0] for w in step.weights if (m := re.match(r"((enc|dec|v|a)\.)?blk\.\d+", w.name))), "")
            rows = {self.values[value].rows for value in (*step.inputs, *step.outputs)}
            out.append(out[-1] if out and not step.weights and len(rows) == 1 else found)
        return tuple(out)

    @property
    def weights(self) -> Mapping[str, Weight]:
        """Weights of all steps, in order of first use."""
        return {weight.name: weight for step in self.steps for weight in step.weights}

    @cached_property
    def paged(self) -> Mapping[int, Paged]:
        """Paged entries of the state, by index."""
        return {i: entry for i, entry in enumerate(self.state) if isinstance(entry, Paged)}

    @cached_property
    def slots(self) -> Mapping[int, Slot]:
        """Slots (recurrent states) of the state, by index."""
        return {i: entry for i, entry in enumerate(self.state) if isinstance(entry, Slot)}

    @cached_property
    def windows(self) -> tuple[int, ...]:
        """Distinct windows of the paged entries, ascending. Entries without a window are excluded."""
        return tuple(sorted({entry.window for entry in self.paged.values()} - {0}))

    def bytes_per_token(self, bytes_per_element: float) -> float:
        """Return the KV cache size of one token, over all entries."""
        return sum(entry.width * bytes_per_element for entry in self.paged.values())

    def growth_bytes(self, bytes_per_element: float) -> float:
        """Return the KV cache size of one token over the entries without a window."""
        return sum(entry.width * bytes_per_element for entry in self.paged.values() if not entry.window)

    def context_bytes(self, n_tokens: int, bytes_per_element: float, n_rows: int = 512) -> float:
        """Return the cache size of a sequence. An entry with a window stores the window and the rows of one step."""
        kept = (min(n_tokens, e.window + n_rows) if e.window else n_tokens for e in self.paged.values())
        pages = sum(n * e.width * bytes_per_element for n, e in zip(kept, self.paged.values(), strict=True))
        return pages + self.bytes_per_sequence

    @property
    def bytes_per_sequence(self) -> int:
        """Size of the recurrent state of a sequence, over all slots."""
        return sum(4 * entry.numbers for entry in self.slots.values())
