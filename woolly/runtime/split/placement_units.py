"""Atoms: the smallest ranges of steps that are placed on a device, and their memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from woolly.plan.passes import layer_split_points, slice_steps, split_points
from woolly.runtime.gpu.memory_requirements import RESERVE, USUAL_ROWS, measure
from woolly.runtime.gpu.state import page_bytes
from woolly.runtime.state import pages_for, pages_for_window

if TYPE_CHECKING:
    from woolly.gguf import Tensor
    from woolly.plan import Plan
    from woolly.runtime.gpu.device import Device
    from woolly.runtime.options import Options


@dataclass(frozen=True)
class Atom:
    """Steps placed together. Except for experts, atoms of one unit are also placed together."""

    first: int
    last: int  # exclusive
    unit: int  # a layer, several that cannot be separated, or the output head
    is_experts: bool


def atoms_of(plan: Plan) -> tuple[list[Atom], list[int]]:
    """Return the atoms of a plan, and the number of layers of each unit, or 0 for the output head."""
    points, layers = split_points(plan), plan.layers
    last_layered = max((i for i, layer in enumerate(layers) if layer), default=-1)
    head = [at for at in points if at > last_layered][:1]
    starts = sorted({0, *sorted(layer_split_points(plan).values())[1:], *head})
    units = list(pairwise([*starts, len(plan.steps)]))
    atoms: list[Atom] = []
    for unit, (first, last) in enumerate(units):
        edges, inside = [first], [at for at in points if first < at < last]
        expert_starts: set[int] = set()  # where experts begin
        for i, step in enumerate(plan.steps[first:last], first):
            if step.part == "experts":
                begin = max([at for at in inside if at <= i], default=first)
                edges += [begin, min([at for at in inside if at > i], default=last)]
                expert_starts.add(begin)
        atoms += (Atom(a, b, unit, a in expert_starts) for a, b in pairwise(sorted({*edges, last})))
    return atoms, [len(set(layers[first:last]) - {""}) for first, last in units]


def cpu_experts(atoms: Iterable[Atom], layers: Sequence[int], n_cpu_moe: int | str | None) -> set[Atom]:
    """Return the experts that `n_cpu_moe` keeps on the CPU. `layers` has the number of layers of each unit."""
    limit = sum(layers) if n_cpu_moe == "all" else int(n_cpu_moe or 0)
    return {atom for atom in atoms if atom.is_experts and sum(layers[: atom.unit]) < limit}


def cpu_expert_bytes(plan: Plan, n_cpu_moe: int | str | None) -> int:
    """Return the bytes in the file of the experts that `n_cpu_moe` keeps on the CPU."""
    if not n_cpu_moe:
        return 0
    experts = cpu_experts(*atoms_of(plan), n_cpu_moe)
    steps = [step for atom in experts for step in plan.steps[atom.first : atom.last]]
    return sum({weight.name: weight.n_bytes for step in steps for weight in step.weights}.values())


def kv_type_of(plan: Plan, options: Options) -> str:
    """Return the cache type, selected like in all backends."""
    return options.kv_type or ("f16" if plan.is_causal else "f32")


def cache_bytes(plan: Plan, entries: Collection[int], options: Options, n_tokens: int | None = None) -> int:
    """Return the GPU memory of some state entries in bytes, for the cache of the options or of `n_tokens`."""
    n_pages = pages_for(n_tokens if n_tokens is not None else options.cache_tokens or 0)
    kv_type, n_rows, out = kv_type_of(plan, options), options.rows(USUAL_ROWS), 0
    for i, entry in plan.paged.items():
        if i in entries:
            window = pages_for_window(entry.window, options.max_running, n_rows, n_pages) if entry.window else n_pages
            out += window * sum(page_bytes(entry, kv_type))
    return out + sum(4 * slot.numbers * options.cache_slots for i, slot in plan.slots.items() if i in entries)


class Costs:
    """GPU memory required by sets of atoms."""

    def __init__(
        self, device: Device, plan: Plan, atoms: list[Atom], tensors: Mapping[str, Tensor], options: Options
    ) -> None:
        """Raises UnsupportedError if the GPU has no kernels for the plan."""
        ranges = [(atom.first, atom.last) for atom in atoms]
        cut = replace(slice_steps(plan, ranges), draft=plan.draft)
        needs = measure(device, cut, tensors, kv_type_of(plan, options), options.rows(USUAL_ROWS))
        self._plan, self._options, self._needs = plan, options, needs
        self._names = dict(zip(atoms, needs.ranges, strict=True))
        self._entries = {
            atom: {s.integer("entry") for s in plan.steps[atom.first : atom.last] if "entry" in dict(s.attributes)}
            for atom in atoms
        }
        self._last = atoms[-1]
        self.values = needs.values + RESERVE

    def weights(self, atoms: Iterable[Atom]) -> int:
        """Return the bytes of the weights, counting each weight once."""
        names = frozenset[str]().union(*(self._names[atom] for atom in atoms))
        return sum(self._needs.weights[name] for name in names)

    def cache(self, atoms: Collection[Atom], n_tokens: int | None = None) -> int:
        """Return the bytes of the requested cache, or of a cache with `n_tokens`."""
        entries = {entry for atom in atoms for entry in self._entries[atom]}
        draft = self._plan.draft if self._last in atoms else None
        own = cache_bytes(self._plan, entries, self._options, n_tokens)
        if draft is None or draft.borrows:
            return own
        return own + cache_bytes(draft, range(len(draft.state)), self._options, n_tokens)

    def total(self, atoms: Collection[Atom]) -> int:
        """Return the total bytes of weights, cache, intermediate values and a reserve."""
        return self.weights(atoms) + self.cache(atoms) + self.values if atoms else 0
