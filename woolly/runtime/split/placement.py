"""Placement: the device of each step of a plan, and the memory used on each device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from woolly.errors import RequestError
from woolly.runtime.device_share import DeviceShare
from woolly.runtime.split.placement_units import Atom, Costs, atoms_of, cpu_experts
from woolly.runtime.split.program import Segment

if TYPE_CHECKING:
    from woolly.gguf import Tensor
    from woolly.plan import Plan
    from woolly.runtime.gpu.device import Device
    from woolly.runtime.options import Options

_CTX_STEP = 256  # the context that would fit is rounded down to a multiple of it

Home = dict[Atom, int]  # GPU index by atom; atoms on the CPU are absent


@dataclass(frozen=True)
class Card:
    """Open GPU, and the memory available to the model."""

    number: int
    device: Device
    free: int
    total: int

    @property
    def label(self) -> str:
        """Name of the card for `device`, such as cuda:0."""
        return f"{self.device.kernels.backend}:{self.number}"


@dataclass(frozen=True)
class Placement:
    """Assignment of a plan's steps to parts: the GPUs in use, in order, then the CPU if used."""

    segments: tuple[Segment, ...]
    cards: tuple[int, ...]  # numbers of the cards that are used
    shares: tuple[DeviceShare, ...]  # one per part
    n_layers: int  # layers of the model
    n_tokens: int  # capacity of the cache
    cpu_bytes: int  # bytes of weights that the CPU reads per token
    bound: str  # limit that keeps more layers off the GPUs; "": none

    @property
    def is_whole(self) -> bool:
        """True if no step is on the CPU."""
        return all(share.device != "cpu" for share in self.shares)

    def __str__(self) -> str:
        """Return a summary of the layers and memory on each device."""
        gpus = [share for share in self.shares if share.device != "cpu"]
        whole, partly = (sum(getattr(s, name) for s in gpus) for name in ("n_layers", "n_without_experts"))
        if not gpus:
            return f"none of {self.n_layers} layers are on a GPU, bounded by {self.bound}; the CPU runs the model"
        where = " and ".join(dict.fromkeys(share.device for share in gpus))
        taken = " and ".join(f"{(s.weights + s.cache + s.values) / 1e9:,.1f} of {_gb(s.free or 0)}" for s in gpus)
        text = f"{whole} of {self.n_layers} layers are on {where} (which takes {taken} that are free)"
        text += f", {partly} more without their experts" * bool(partly)
        if self.is_whole:
            return text
        own = self.shares[-1]
        left = [f"{own.n_layers} layer{'s' * (own.n_layers != 1)}"] * bool(own.n_layers)
        left += ["experts"] * bool(partly) + ["the output"] * own.has_output
        *some, last = left
        rest = f"{', '.join(some)} and {last}" if some else last
        verb = "is" if left == ["the output"] else "are"
        return f"{text}; {rest} {verb} on the CPU, which reads {_gb(self.cpu_bytes)} for each token"


def place_layers(
    plan: Plan, tensors: Mapping[str, Tensor], options: Options, cards: Sequence[Card], n_wanted: int | None
) -> Placement:
    """Place the first `n_wanted` layers (None: as many as fit) on the cards, and the rest on the CPU.

    Experts are the first to be placed on the CPU. Raises RequestError with the sizes if the requested layers do not
    fit.
    """
    return _Placer(plan, tensors, options, cards).place(n_wanted)


class _Placer:
    """Assigns the atoms of a plan to cards."""

    def __init__(self, plan: Plan, tensors: Mapping[str, Tensor], options: Options, cards: Sequence[Card]) -> None:
        self.plan, self.options, self.cards = plan, options, cards
        self.atoms, self.layers = atoms_of(plan)
        # A GPU that is named twice is measured once.
        costs = {c.number: Costs(c.device, plan, self.atoms, tensors, options) for c in cards}
        self.costs = [costs[card.number] for card in cards]
        self.n_layers = sum(self.layers)
        self.cpu_experts = cpu_experts(self.atoms, self.layers, options.n_cpu_moe)

    def place(self, n_wanted: int | None) -> Placement:
        """Return the placement of `n_wanted` layers, or of as many as fit for None."""
        everything = set(self.atoms) - self.cpu_experts
        if n_wanted is not None and n_wanted < self.n_layers:
            home = self._dealt(self._first_layers(n_wanted))
            return self._placement(self._checked(home), f"gpu_layers is {n_wanted}")
        home = self._dealt(everything)
        if self._fits(home):
            return self._placement(home, f"n_cpu_moe is {self.options.n_cpu_moe}" * bool(self.cpu_experts))
        if n_wanted is not None:
            self._checked(home)
        return self._placement(self.most(), self._bound())

    def most(self) -> Home:
        """Place all steps except experts, then experts layer by layer; if the former do not fit, leading layers."""
        plain = {atom for atom in self.atoms if not atom.is_experts}
        home = self._dealt(plain)
        if len(plain) == len(self.atoms) or not self._fits(home):
            return self._filled(plain)
        for atom in self.atoms:
            if atom.is_experts and atom not in self.cpu_experts:
                near = next(home[other] for other in self.atoms if other.unit == atom.unit and other in home)
                if self._fits(home | {atom: near}):
                    home |= {atom: near}
                else:
                    break
        return home

    def _filled(self, atoms: set[Atom]) -> Home:
        """Place units in order, each on the first card with room, until one fits nowhere."""
        home: Home = {}
        at = 0
        for unit in range(len(self.layers)):
            own = [atom for atom in self.atoms if atom.unit == unit and atom in atoms]
            while at < len(self.cards) and not self._fits(home | dict.fromkeys(own, at)):
                at += 1
            if at == len(self.cards):
                break
            home |= dict.fromkeys(own, at)
        return home

    def _first_layers(self, n: int) -> set[Atom]:
        counted, units = 0, 0
        while counted < n:
            counted, units = counted + self.layers[units], units + 1
        if counted != n:
            possible = sorted({0, *(sum(self.layers[:i]) for i in range(1, len(self.layers)))})
            raise RequestError(
                f"gpu_layers is {n}, but this {self.plan.architecture} model can be split only after"
                f" {', '.join(map(str, possible))} layers: others share more than one value",
                field="gpu_layers",
            )
        return {atom for atom in self.atoms if atom.unit < units} - self.cpu_experts

    def _dealt(self, atoms: set[Atom]) -> Home:
        """Place units in order, in proportion to the free memory. If that does not fit, fill the cards in turn."""
        units = sorted({atom.unit for atom in atoms})
        sizes = [self.costs[0].weights([atom for atom in atoms if atom.unit == unit]) for unit in units]
        whole, free = sum(sizes), [card.free for card in self.cards]
        home: Home = {}
        done = 0
        for unit, size in zip(units, sizes, strict=True):
            middle = (done + size / 2) / max(1, whole) * sum(free)
            at = next((i for i in range(len(free)) if middle < sum(free[: i + 1])), len(free) - 1)
            home |= dict.fromkeys((atom for atom in atoms if atom.unit == unit), at)
            done += size
        if not self._fits(home) and len(filled := self._filled(atoms)) == len(atoms):
            return filled
        return home

    def _own(self, home: Home, card: int) -> list[Atom]:
        return [atom for atom in self.atoms if home.get(atom) == card]

    def _fits(self, home: Home) -> bool:
        budget, taken = self.options.weight_memory, 0
        for i, (card, costs) in enumerate(zip(self.cards, self.costs, strict=True)):
            own = self._own(home, i)
            taken += costs.weights(own)
            if costs.total(own) > card.free:
                return False
        return budget is None or taken <= budget

    def _checked(self, home: Home) -> Home:
        """Return the placement. Raises RequestError with the sizes of the first card that is too small."""
        if self._fits(home):
            return home
        weights = [costs.weights(self._own(home, i)) for i, costs in enumerate(self.costs)]
        budget, most = self.options.weight_memory, self._counted(self.most())
        if budget is not None and sum(weights) > budget:
            raise RequestError(
                f"weight_memory is {_gb(budget)}, and the weights take {_gb(sum(weights))} of the GPU; leave it out, or"
                f" use gpu_layers {most}",
                field="weight_memory",
                names=("weight_memory", "gpu_layers"),
            )
        i = next(i for i, card in enumerate(self.cards) if self.costs[i].total(self._own(home, i)) > card.free)
        card, costs, own = self.cards[i], self.costs[i], self._own(home, i)
        n_tokens, left = self.options.cache_tokens or 0, card.free - costs.values - weights[i]
        kept = _fitting(costs, own, left, n_tokens)
        advice = [f"gpu_layers {most} would fit" if most else "no layer fits: use backend='cpu'"]
        advice += [f"or ctx {kept}"] * bool(kept)
        raise RequestError(
            f"{card.device.name} has {_gb(card.free)} free of {_gb(card.total)}, and"
            f" {_gb(costs.total(own))} are needed: {_gb(weights[i])} of weights, {_gb(costs.cache(own))} of a cache of"
            f" {n_tokens} tokens, {_gb(costs.values)} of values; {', '.join(advice)}",
            code="device_memory",
            field="gpu_layers",
            limit=card.free,
            given=costs.total(own),
            names=("gpu_layers", "ctx", "backend"),
        )

    def _counted(self, home: Home) -> int:
        """Return the number of complete layers on cards."""
        return sum(
            n for unit, n in enumerate(self.layers) if all(atom in home for atom in self.atoms if atom.unit == unit)
        )

    def _bound(self) -> str:
        budget = self.options.weight_memory
        where = " and ".join(f"{_gb(card.free)} of {card.label}" for card in self.cards)
        return f"free memory, {where}" + (f", and weight_memory, {_gb(budget)}" if budget is not None else "")

    def _placement(self, home: Home, bound: str) -> Placement:
        used = sorted(set(home.values()))
        parts = {card: part for part, card in enumerate(used)}
        homes = [parts.get(home.get(atom, -1), len(used)) for atom in self.atoms]
        segments: list[Segment] = []
        for part, run in groupby(zip(homes, self.atoms, strict=True), key=lambda pair: pair[0]):
            own = [atom for _, atom in run]
            segments.append(Segment(part, own[0].first, own[-1].last))
        shares = [self._share(home, card) for card in used]
        left = [atom for atom in self.atoms if atom not in home]
        steps = [step for atom in left for step in self.plan.steps[atom.first : atom.last]]
        if left:
            weights = {w.name: w.n_bytes for step in steps for w in step.weights}
            n_left = self.n_layers - sum(share.n_layers for share in shares)
            partly = sum(share.n_without_experts for share in shares)
            has_output = self.atoms[-1] in left
            cache = self.costs[0].cache(left)
            shares.append(DeviceShare("cpu", "", n_left - partly, 0, has_output, sum(weights.values()), cache, 0))
        n_tokens = self.options.cache_tokens or 0
        cpu_bytes = sum(step.row_bytes() for step in steps if step.matrices)
        return Placement(tuple(segments), tuple(used), tuple(shares), self.n_layers, n_tokens, cpu_bytes, bound)

    def _share(self, home: Home, at: int) -> DeviceShare:
        card, costs, own = self.cards[at], self.costs[at], self._own(home, at)
        whole = [unit for unit in range(len(self.layers)) if all(a in own for a in self.atoms if a.unit == unit)]
        partly = {atom.unit for atom in own} - set(whole)
        return DeviceShare(
            card.label,
            card.device.name,
            sum(self.layers[unit] for unit in whole),
            sum(self.layers[unit] for unit in partly),
            self.atoms[-1] in own,
            costs.weights(own),
            costs.cache(own),
            costs.values,
            card.free,
            card.total,
            card.device.driver,
        )


def _fitting(costs: Costs, own: list[Atom], left: int, most: int) -> int:
    """Return the longest context whose cache takes at most `left` bytes, rounded down to _CTX_STEP."""
    low, high = 0, most // _CTX_STEP
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if costs.cache(own, middle * _CTX_STEP) <= left else (low, middle - 1)
    return low * _CTX_STEP


def _gb(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:,.1f} GB"
