"""The op table: one row per op with all its properties except the arithmetic.

A plain op is a method of the tracer whose decorator is its row and whose body is its shape rule; a fused op is a row
alone. Passes, benchmarks, printed plans and backends ask the row instead of comparing names.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from woolly.plan.plan import Plan, Step


@dataclass(frozen=True)
class Load:
    """Shape of one run: equal ranges of rows of several sequences."""

    n_sequences: int
    first: int  # position of the first row
    n_rows: int  # of each sequence
    cache_bytes: float = 0.0  # K and V of one position, over all layers

    @property
    def total(self) -> int:
        """Rows over all sequences."""
        return self.n_sequences * self.n_rows


@dataclass(frozen=True)
class Cost:
    """Memory traffic and products of a step for one load."""

    n_bytes: float  # weights and cache that it reads
    products: int  # multiply-adds


def weights_cost(plan: Plan, step: Step, load: Load) -> Cost:
    """Default cost: every weight read once, every row multiplied by all matrices."""
    products = round(sum(math.prod(w.shape) * step.used_share(w) for w in step.matrices))
    rare = {w.name for w in step.by_role(*step.kind.rare)}
    return Cost(sum(w.n_bytes for w in step.weights if w.name not in rare), load.total * products)


@dataclass(frozen=True)
class Op:
    """One row of the table."""

    name: str
    inputs: tuple[str, ...] = ()  # a name that ends in "?" is given by passes alone
    # Roles of the weights, in order: "?" ends one that may be absent, "..." one that may come several times. A step
    # whose roles do not follow from their number lists them in its attribute "roles".
    weights: tuple[str, ...] = ()
    matrices: tuple[str, ...] = ()  # roles that rows are multiplied with: they are packed, counted and bounded
    rare: tuple[str, ...] = ()  # roles used only by image rows, excluded from the cost
    tables: tuple[
        str, ...
    ] = ()  # roles used as lookup tables; every role that is neither a matrix nor a table is a vector
    attributes: tuple[str, ...] = ()  # "?" ends one of which 0 means none: it is not printed
    # State that outlives a run, and scratch memory that threads share during one: names, with attributes in braces.
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    scratch: tuple[str, ...] = ()
    part: str | Callable[[Step], str] = "other"  # part of a model that its time counts for
    cost: Callable[[Plan, Step, Load], Cost] = weights_cost
    fused: bool = False  # created by a pass, not by a model
    whole: bool = False  # reads other rows of a text, which must be complete in the batch
    by_row: bool = False  # row-wise: each output row depends only on the same input row, not on its position
    cuts_rows: bool = False  # takes long, and may compute some rows of its result now and the others later


OPS: dict[str, Op] = {}

Rule = TypeVar("Rule", bound=Callable[..., Any])


def op(**row: Any) -> Callable[[Rule], Rule]:
    """Decorates a tracer's method: enters the row of the op that the method is named after."""

    def enter(rule: Rule) -> Rule:
        OPS[rule.__name__] = Op(rule.__name__, **row)
        return rule

    return enter
