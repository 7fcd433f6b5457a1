"""Where each value lies in the arena, and before which steps threads must wait for each other."""

from __future__ import annotations

from dataclasses import dataclass

from woolly.plan.plan import Plan, Step

__all__ = ["Placement", "barriers", "place"]

_ALIGNMENT = 64
_BYTES = 4  # values are f32


@dataclass(frozen=True)
class Placement:
    """Byte offset of each value that a step makes, and the size of the arena."""

    offsets: dict[int, int]
    sizes: dict[int, int]
    n_bytes: int

    def overlap(self, a: int, b: int) -> bool:
        """Whether two values share memory."""
        return self.offsets[a] < self.offsets[b] + self.sizes[b] and self.offsets[b] < self.offsets[a] + self.sizes[a]


def place(plan: Plan, max_rows: int) -> Placement:
    """First fit by lifetime: values that are never alive together share memory. The result lies last, alone.

    Its size is that of a whole batch of logits, mostly never touched, so it must not push others apart.
    """
    made: dict[int, int] = {}
    last_use: dict[int, int] = {}
    for index, step in enumerate(plan.steps):
        for value in step.outputs:
            made.setdefault(value, index)
            last_use[value] = index
        for value in step.inputs:
            last_use[value] = index
    result = plan.steps[-1].outputs[-1]
    sizes = {v: -(-plan.values[v].width * max_rows * _BYTES // _ALIGNMENT) * _ALIGNMENT for v in made}
    offsets: dict[int, int] = {}
    for value in sorted((v for v in made if v != result), key=lambda v: -sizes[v]):
        alive = sorted(
            (offsets[other], sizes[other])
            for other in offsets
            if made[other] <= last_use[value] and made[value] <= last_use[other]
        )
        at = 0
        for offset, size in alive:
            if at + sizes[value] <= offset:
                break
            at = max(at, offset + size)
        offsets[value] = at
    offsets[result] = max((offsets[v] + sizes[v] for v in offsets), default=0)
    return Placement(offsets, sizes, offsets[result] + sizes[result])


def barriers(plan: Plan, placement: Placement) -> tuple[bool, ...]:
    """For each step whether all threads must have finished the steps before it.

    A step may start early only if it reads nothing that was written, and writes nothing that was read or written,
    since the last barrier. The cache of a layer and the prepared activations of linears count as memory, too.
    """
    out: list[bool] = []
    read: set[int] = set()
    written: set[int] = set()
    resources_read: set[str] = set()
    resources_written: set[str] = set()
    for step in plan.steps:
        reads, writes = _resources(step)
        wait = (
            any(placement.overlap(a, b) for a in step.inputs for b in written)
            or any(placement.overlap(a, b) for a in step.outputs for b in read | written)
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


def _resources(step: Step) -> tuple[set[str], set[str]]:
    if step.op == "linears":
        return set(), {"activations"}
    if step.op == "moe":
        return set(), {"activations", "routes"}
    if step.op == "store":
        return set(), {f"cache {step.integer('layer')}"}
    if step.op == "attend":
        return {f"cache {step.integer('layer')}"}, {"partials"}
    return set(), set()
