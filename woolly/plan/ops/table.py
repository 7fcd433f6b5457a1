"""The op table: one row per op with all its properties except the arithmetic.

A plain op is a method of the tracer: the decorator is its row, and the body is its shape rule. A fused op has only a
table row. Passes, benchmarks, printed plans and backends use the row instead of comparing names.
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
    """Shape of one run: equal ranges of rows from several sequences."""

    n_sequences: int
    first: int  # position of the first row
    n_rows: int  # rows per sequence
    cache_bytes: float = 0.0  # bytes of K and V of one position, over all layers

    @property
    def total(self) -> int:
        """Number of rows over all sequences."""
        return self.n_sequences * self.n_rows


@dataclass(frozen=True)
class Cost:
    """Memory traffic and products of a step for one load."""

    n_bytes: float  # weights and cache that the step reads
    products: int  # multiply-adds


def weights_cost(plan: Plan, step: Step, load: Load) -> Cost:
    """Return the default cost: every weight is read once, and every row is multiplied with all matrices."""
    products = round(sum(math.prod(w.shape) * step.used_share(w) for w in step.matrices))
    rare = {w.name for w in step.by_role(*step.kind.rare)}
    return Cost(sum(w.n_bytes for w in step.weights if w.name not in rare), load.total * products)


@dataclass(frozen=True)
class Op:
    """One row of the table."""

    name: str
    inputs: tuple[str, ...] = ()  # names; "?" ends an input that only passes add
    # Roles of the weights, in order. "?" ends an optional role, "..." a role that may repeat. If the number of weights
    # does not determine the roles, the step lists them in its attribute "roles".
    weights: tuple[str, ...] = ()
    matrices: tuple[str, ...] = ()  # roles of the matrices that rows are multiplied with; they are packed
    rare: tuple[str, ...] = ()  # roles used only by image rows, excluded from the cost
    tables: tuple[
        str, ...
    ] = ()  # roles used as lookup tables; every role that is neither a matrix nor a table is a vector
    attributes: tuple[str, ...] = ()  # names; "?" ends an attribute that is not printed if it is 0
    # State between runs, and scratch memory that threads share during a run: names, with attributes in braces.
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    scratch: tuple[str, ...] = ()
    part: str | Callable[[Step], str] = "other"  # model part to which profiles attribute the step's time
    cost: Callable[[Plan, Step, Load], Cost] = weights_cost
    fused: bool = False  # created by a pass, not by a model
    whole: bool = False  # reads other rows of a sequence, which must be complete in the batch
    by_row: bool = False  # output rows depend only on the same input row, not on its position
    cuts_rows: bool = False  # takes long, and may compute its result in several ranges of rows


OPS: dict[str, Op] = {}

Rule = TypeVar("Rule", bound=Callable[..., Any])


def op(**row: Any) -> Callable[[Rule], Rule]:
    """Register the decorated tracer method as the op of the same name."""

    def enter(rule: Rule) -> Rule:
        OPS[rule.__name__] = Op(rule.__name__, **row)
        return rule

    return enter
