"""Search for the best mix within a size: measure each group in each type, choose, verify, exchange."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from woolly.errors import RequestError
from woolly.gguf import GGUFFile
from woolly.measure.bit_allocation.groups import Types, WeightGroup, groups_of, n_bytes_of, types_for
from woolly.measure.bit_allocation.kl_meter import KlMeter, Loss
from woolly.measure.bit_allocation.knapsack import TypeOption, choose_types
from woolly.measure.bit_allocation.measurement_cache import Records
from woolly.quant import GGMLType
from woolly.quantize import MIXES, ImportanceMatrix, make_recipe

ProgressCallback = Callable[[str, int, int], None]  # task, steps done, total steps

# Popular mixes, for comparison.
_KNOWN = (
    *("Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q5_0", "Q4_K_M", "Q4_K_S", "IQ4_NL", "IQ4_XS", "Q4_0"),
    *("Q3_K_L", "Q3_K_M", "Q3_K_S", "IQ3_M", "IQ3_S", "IQ3_XS", "IQ3_XXS", "Q2_K"),
    *("IQ2_M", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S"),
)
# Maximum number of known mixes to measure. Only the largest that fit are useful.
_N_BELOW, _N_ABOVE = 3, 1


@dataclass(frozen=True)
class GroupLoss:
    """Loss of one group in one type, with other groups unchanged."""

    group: str
    type: str
    n_bytes: int
    kl: float


@dataclass(frozen=True)
class Candidate:
    """Candidate for the complete file: types of all changed weights, and losses."""

    name: str
    types: Types
    n_bytes: int  # size of the tensors
    loss: Loss  # on the text used for the search
    held_out: Loss | None = None  # on windows not used for the search


@dataclass(frozen=True)
class Allocation:
    """Result of the search."""

    best: Candidate
    known: tuple[Candidate, ...]  # largest first
    measured: tuple[GroupLoss, ...]
    predicted_kl: float  # sum over the groups of the first choice
    n_exchanges: int


class _Search:
    def __init__(
        self, file: GGUFFile, records: Records, meter: Callable[[], KlMeter], held: Callable[[], KlMeter] | None
    ) -> None:
        self.file = file
        self.records = records
        self._makers = {"text": meter, "held out": held}
        self._meters: dict[str, KlMeter] = {}

    def n_bytes(self, types: Types) -> int:
        return n_bytes_of(self.file.tensors.values(), types)

    def loss(self, types: Types, part: str = "text") -> Loss:
        found = self.records.get(part, types)
        if found is None:
            make = self._makers[part]
            assert make is not None
            if part not in self._meters:  # a run with complete records computes nothing
                self.close()
                self._meters[part] = make()
            found = self._meters[part].measure(types)
            self.records.put(part, types, found)
        return found

    def close(self) -> None:
        """Free the meters' prepared layers."""
        for meter in self._meters.values():
            meter.close()

    def held_out(self, types: Types) -> Loss | None:
        return None if self._makers["held out"] is None else self.loss(types, "held out")


def allocate_bits(
    file: GGUFFile,
    n_bytes: int,
    records: Records,
    meter: Callable[[], KlMeter],
    held_out: Callable[[], KlMeter] | None,
    *,
    imatrix: ImportanceMatrix | None = None,
    n_depths: int = 2,
    max_exchanges: int = 12,
    on_progress: ProgressCallback = lambda *_: None,
) -> Allocation:
    """Return the types with the least KL divergence whose tensors take at most `n_bytes`.

    Known mixes within the size are candidates, so the result is at least as good as the best known mix. `meter` and
    `held_out` create the meters of the text and of the held-out text.
    """
    search = _Search(file, records, meter, held_out)
    try:
        return _allocate(search, n_bytes, imatrix, n_depths, max_exchanges, on_progress)
    finally:
        search.close()


def _allocate(
    search: _Search,
    n_bytes: int,
    imatrix: ImportanceMatrix | None,
    n_depths: int,
    max_exchanges: int,
    on_progress: ProgressCallback,
) -> Allocation:
    types = _possible(groups_of(search.file, n_depths), imatrix)
    groups = [group for group, _ in types]
    fixed = search.n_bytes({}) - sum(tensor.n_bytes for group in groups for tensor in group.tensors)
    least = fixed + sum(min(map(group.n_bytes, own)) for group, own in types)
    if least > n_bytes:  # check before measuring, which takes minutes
        raise RequestError(f"--size is too small; this model needs at least {least / 1e6:.1f} MB of weights")
    options = _measure(search, types, on_progress)
    chosen = choose_types(options, n_bytes - fixed)
    assert chosen is not None  # the smallest option of each group fits
    predicted = sum(own[i].loss for own, i in zip(options, chosen, strict=True))
    known = _known(search, n_bytes, imatrix, on_progress)
    best = Candidate("picked", _types(groups, options, chosen), 0, Loss(0, 0))
    best = Candidate("picked", best.types, search.n_bytes(best.types), search.loss(best.types))
    best, n_exchanges = _exchange(search, groups, options, chosen, best, n_bytes, max_exchanges, on_progress)
    for mix in known:
        if mix.n_bytes <= n_bytes and mix.loss.kl < best.loss.kl:
            best = mix
    finished = [_with_held_out(search, candidate) for candidate in (best, *known)]
    measured = [
        GroupLoss(group.name, option.type.name, option.n_bytes, option.loss)
        for group, own in zip(groups, options, strict=True)
        for option in own
    ]
    return Allocation(finished[0], tuple(finished[1:]), tuple(measured), predicted, n_exchanges)


def _with_held_out(search: _Search, candidate: Candidate) -> Candidate:
    found = search.held_out(candidate.types)
    return Candidate(candidate.name, candidate.types, candidate.n_bytes, candidate.loss, found)


def _possible(
    groups: Sequence[WeightGroup], imatrix: ImportanceMatrix | None
) -> list[tuple[WeightGroup, list[GGMLType]]]:
    """Return groups with candidate types. Groups with mixed types are skipped if no candidate is smaller."""
    known = set[str]() if imatrix is None else set(imatrix.entries)
    types = ((group, types_for(group, known.issuperset(one.name for one in group.tensors))) for group in groups)
    return [(group, own) for group, own in types if own]


def _measure(
    search: _Search, types: Sequence[tuple[WeightGroup, Sequence[GGMLType]]], on_progress: ProgressCallback
) -> list[list[TypeOption]]:
    """Measure the loss of each group in each candidate type."""
    total, done = sum(len(own) for _, own in types), 0
    out: list[list[TypeOption]] = []
    for group, own in types:
        options: list[TypeOption] = []
        for type in own:
            on_progress(f"{group.name} {type.name}", done, total)
            loss = search.loss(group.types(type)).kl
            options.append(TypeOption(type, group.n_bytes(type), loss))
            done += 1
        out.append(options)
    on_progress("", total, total)
    return out


def _types(
    groups: Sequence[WeightGroup], options: Sequence[Sequence[TypeOption]], chosen: Sequence[int]
) -> dict[str, GGMLType]:
    types: dict[str, GGMLType] = {}
    for group, own, index in zip(groups, options, chosen, strict=True):
        types |= group.types(own[index].type)
    return types


def _known(
    search: _Search, n_bytes: int, imatrix: ImportanceMatrix | None, on_progress: ProgressCallback
) -> list[Candidate]:
    """Measure the largest known mixes within the size, largest first."""
    sized: list[tuple[int, str, Types]] = []
    for name in _KNOWN:
        try:
            recipe = make_recipe(search.file, MIXES[name], allow_requantize=True, has_imatrix=imatrix is not None)
            if imatrix is not None:
                imatrix.missing(recipe)
        except RequestError:  # it needs an imatrix, or an entry that is missing in the imatrix
            continue
        sized.append((recipe.n_bytes, name, {c.tensor.name: c.type for c in recipe.changes if c.is_change}))
    below = sorted((entry for entry in sized if entry[0] <= n_bytes), key=lambda entry: -entry[0])[:_N_BELOW]
    above = sorted((entry for entry in sized if entry[0] > n_bytes), key=lambda entry: entry[0])[:_N_ABOVE]
    out = []
    for i, (size, name, types) in enumerate([*above[::-1], *below]):
        on_progress(name, i, len(above) + len(below))
        out.append(Candidate(name, types, size, search.loss(types)))
    return out


def _exchange(
    search: _Search,
    groups: Sequence[WeightGroup],
    options: Sequence[Sequence[TypeOption]],
    chosen: list[int],
    best: Candidate,
    n_bytes: int,
    max_exchanges: int,
    on_progress: ProgressCallback,
) -> tuple[Candidate, int]:
    """Change one or two groups while this reduces the loss, most promising changes first.

    Losses do not add up exactly, but predict small changes well.
    """
    tried: set[tuple[int, ...]] = {tuple(chosen)}
    n = 0
    while n < max_exchanges:
        moves = _moves(groups, options, chosen, best.n_bytes, n_bytes, tried)
        improved = False
        for moved in moves[:3]:
            if n == max_exchanges:
                break
            on_progress("exchange", n, max_exchanges)
            n += 1
            tried.add(tuple(moved))
            types = _types(groups, options, moved)
            candidate = Candidate("picked", types, search.n_bytes(types), search.loss(types))
            if candidate.loss.kl < best.loss.kl:
                best, chosen, improved = candidate, moved, True
                break
        if not improved:
            break
    return best, n


def _moves(
    groups: Sequence[WeightGroup],
    options: Sequence[Sequence[TypeOption]],
    chosen: list[int],
    size: int,
    n_bytes: int,
    tried: set[tuple[int, ...]],
) -> list[list[int]]:
    """Return choices that change one group, or enlarge one group and shrink another, best estimate first."""
    found: list[tuple[float, list[int]]] = []
    steps = [(g, i) for g in range(len(groups)) for i in range(len(options[g])) if i != chosen[g]]

    def change(g: int, i: int) -> tuple[int, float]:
        now, then = options[g][chosen[g]], options[g][i]
        return then.n_bytes - now.n_bytes, then.loss - now.loss

    for g, i in steps:
        grows, gains = change(g, i)
        if gains >= 0:
            continue
        for h, k in [(g, i), *steps]:
            more, costs = (0, 0.0) if h == g else change(h, k)
            if (h == g and k != i) or size + grows + more > n_bytes:
                continue
            moved = list(chosen)
            moved[g] = i
            if h != g:
                moved[h] = k
            if tuple(moved) not in tried:
                found.append((gains + costs, moved))
    found.sort(key=lambda entry: entry[0])
    return [moved for _, moved in found]
