"""Arena layout of the values, and barriers between steps."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from woolly.plan.plan import Plan

_BYTES = 4  # values are f32


@dataclass(frozen=True)
class ArenaLayout:
    """Byte offset of each value in the arena, and the size of the arena."""

    offsets: dict[int, int]
    sizes: dict[int, int]
    n_bytes: int

    def overlap(self, a: int, b: int) -> bool:
        """True if two values share memory."""
        return self.offsets[a] < self.offsets[b] + self.sizes[b] and self.offsets[b] < self.offsets[a] + self.sizes[a]


def plan_memory(plan: Plan, max_rows: int, alignment: int = 64, joined: Collection[int] = ()) -> ArenaLayout:
    """Place values first-fit by lifetime: values that are never alive together share memory.

    The results of the plan and its draft are placed last, apart from other values: they are as large as a full batch of
    logits and mostly untouched, and would spread other values apart. A `joined` step may run together with the next, so
    its inputs live longer.
    """
    made: dict[int, int] = {}
    last_use: dict[int, int] = {}
    for index, step in enumerate(plan.steps):
        for value in step.outputs:
            made.setdefault(value, index)
            last_use[value] = index
        for value in step.inputs:
            last_use[value] = index + (index in joined)
    # At most one result per step, so no two are alive together.
    results = {step.outputs[-1] for step in plan.steps} - {value for step in plan.steps for value in step.inputs}
    sizes = {v: -(-plan.values[v].width * max_rows * _BYTES // alignment) * alignment for v in made}
    offsets: dict[int, int] = {}
    alive: list[list[int]] = [[] for _ in range(len(plan.steps) + 1)]  # placed values, by the steps they live at
    for value in sorted((v for v in made if v not in results), key=lambda v: -sizes[v]):
        life = range(made[value], last_use[value] + 1)
        others = {other for index in life for other in alive[index]}
        for index in life:
            alive[index].append(value)
        at = 0
        for offset, size in sorted((offsets[other], sizes[other]) for other in others):
            if at + sizes[value] <= offset:
                break
            at = max(at, offset + size)
        offsets[value] = at
    end = max((offsets[v] + sizes[v] for v in offsets), default=0)
    offsets |= dict.fromkeys(results, end)
    return ArenaLayout(offsets, sizes, end + max(sizes[v] for v in results))


def barriers(plan: Plan, layout: ArenaLayout) -> tuple[bool, ...]:
    """Return for each step whether it needs a barrier before it.

    A step may start early if, since the last barrier, nothing that it reads was written and nothing that it writes was
    read or written. State and shared scratch memory, as listed in the op table, count too.
    """
    out: list[bool] = []
    read: set[int] = set()
    written: set[int] = set()
    resources_read: set[str] = set()
    resources_written: set[str] = set()
    for step in plan.steps:
        reads, writes = step.reads, step.writes
        wait = (
            any(layout.overlap(a, b) for a in step.inputs for b in written)
            or any(layout.overlap(a, b) for a in step.outputs for b in read | written)
            or bool(reads & resources_written or writes & (resources_read | resources_written))
        )
        if wait:
            read, written, resources_read, resources_written = set(), set(), set(), set()
        read |= set(step.inputs)
        written |= set(step.outputs)
        resources_read |= reads
        resources_written |= writes
        out.append(wait)
    return tuple(out)
