"""SplitBackend: as many layers as fit on GPUs, and the rest on the CPU."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from woolly.errors import RequestError, UnsupportedError
from woolly.runtime.cpu import CpuBackend
from woolly.runtime.devices import parse_devices
from woolly.runtime.gpu.memory_requirements import RESERVE, USUAL_ROWS
from woolly.runtime.options import Options, check_kv_type
from woolly.runtime.split.placement import Card, Placement, place_layers
from woolly.runtime.split.placement_units import cache_bytes, kv_type_of
from woolly.runtime.split.program import SplitProgram

if TYPE_CHECKING:
    from woolly.gguf import Tensor
    from woolly.plan import Plan
    from woolly.runtime.gpu.backend import GpuBackend
    from woolly.runtime.program import Program

log = logging.getLogger("woolly.runtime")

_ALL = 1 << 30  # more layers than any model has
# Upper bound for the values of a batch, for any model.
_VALUES = 4 << 30
_PADDING = 1 << 16  # upper bound per weight


class SplitBackend:
    """GPU backend for one GPU or several, with the CPU for layers that do not fit."""

    is_gpu = True

    def __init__(self, gpu: GpuBackend, insists: bool) -> None:
        """`insists`: the entire model must fit, unless `Options.gpu_layers` is set."""
        self._gpu = gpu
        self._insists = insists
        self.name = gpu.name

    @property
    def levels(self) -> Sequence[str]:
        """Levels of the GPU backend."""
        return self._gpu.levels

    def is_available(self) -> bool:
        """True if a GPU is usable."""
        return self._gpu.is_available()

    def compile(self, plan: Plan, tensors: Mapping[str, Tensor], options: Options) -> Program:
        """Return the program of one GPU, of several GPUs, or of GPUs and the CPU."""
        if options.gpu_layers == 0:
            return CpuBackend().compile(plan, tensors, _for_part(options, on_gpu=False, is_alone=True))
        self._check(options)
        cards = self._open(options)
        try:
            is_free = self._wanted(options) in (None, _ALL) and not options.n_cpu_moe
            if len(cards) == 1 and is_free and _surely_fits(plan, options, cards[0]):
                return self._gpu.compile_on(
                    cards[0].device, plan, tensors, _for_part(options, on_gpu=True, is_alone=True)
                )
            placement, options = self._place(plan, tensors, options, cards)
            return self._compiled(plan, tensors, options, cards, placement)
        except BaseException:
            _close(cards)
            raise

    def place(self, plan: Plan, tensors: Mapping[str, Tensor], options: Options) -> Placement:
        """Return the placement that `compile` would choose for the memory that is free now."""
        self._check(options)
        cards = self._open(options)
        try:
            return self._place(plan, tensors, options, cards)[0]
        finally:
            _close(cards)

    def _check(self, options: Options) -> None:
        if options.kv_type is not None:  # fail before a GPU is opened
            check_kv_type(options.kv_type, gpu=self.name)

    def _wanted(self, options: Options) -> int | None:
        """Return the number of layers that must be on GPUs, or None for as many as fit."""
        if isinstance(options.gpu_layers, int):
            return options.gpu_layers
        if options.gpu_layers == "all":
            return _ALL
        return _ALL if self._insists and options.gpu_layers is None else None

    def _open(self, options: Options) -> list[Card]:
        numbers = parse_devices(options.device)
        if not numbers:
            raise RequestError(f"device is {options.device!r}, but must be a GPU here", field="device")
        cards: list[Card] = []
        try:
            for number in numbers:
                device = self._gpu.open(None if options.device is None else number)
                cards.append(Card(number, device, *device.memory()))
        except BaseException:
            _close(cards)
            raise
        # A GPU that is listed twice shares its memory.
        times = Counter(numbers)
        return [replace(card, free=card.free // times[card.number]) for card in cards]

    def _place(
        self, plan: Plan, tensors: Mapping[str, Tensor], options: Options, cards: Sequence[Card]
    ) -> tuple[Placement, Options]:
        """Return the placement, and the options with its maximum rows of a batch."""
        wanted = self._wanted(options)
        if options.max_rows is None:
            # Layers on the GPU gain more than large batches do.
            try:
                large = replace(options, max_rows=USUAL_ROWS)
                placement = place_layers(plan, tensors, large, cards, wanted)
                if placement.is_whole:
                    return placement, large
            except RequestError:
                pass
            options = replace(options, max_rows=options.rows())
        return place_layers(plan, tensors, options, cards, wanted), options

    def _compiled(
        self,
        plan: Plan,
        tensors: Mapping[str, Tensor],
        options: Options,
        cards: Sequence[Card],
        placement: Placement,
    ) -> Program:
        is_alone = len(placement.shares) == 1
        if not is_alone and plan.draft is not None and plan.draft.borrows:
            raise UnsupportedError(
                "drafts that read the model's keys run only on one device, but this model uses several:"
                " use speculation 'none'"
            )
        if not is_alone and plan.draft is not None and plan.draft.mask is not None:
            raise UnsupportedError(
                "block-diffusion drafts run only on the CPU, but this model uses several devices:"
                " use speculation 'none'"
            )
        options = replace(options, kv_type=kv_type_of(plan, options))
        used = [cards[i] for i in placement.cards]
        _close([card for i, card in enumerate(cards) if i not in placement.cards])
        if not placement.is_whole:
            log.warning("%s", placement)
        if options.weight_memory is not None:
            taken = sum(share.weights for share in placement.shares if share.device != "cpu")
            options = replace(options, weight_memory=max(0, options.weight_memory - taken))
        on_gpu, on_cpu = (_for_part(options, is_gpu, is_alone) for is_gpu in (True, False))

        def on(card: Card) -> Callable[[Plan], Program]:
            return lambda own: self._gpu.compile_on(card.device, own, tensors, on_gpu)

        compilers = [on(card) for card in used]
        if not placement.is_whole:
            compilers.append(lambda own: CpuBackend().compile(own, tensors, on_cpu))
        if is_alone:
            return compilers[0](plan)
        program = SplitProgram(plan, placement.segments, compilers)
        program.about = replace(program.about, shares=placement.shares)
        return program


def _for_part(options: Options, on_gpu: bool, is_alone: bool) -> Options:
    """Return the options of a part. A level may list the levels of all parts, as in `About.level`."""
    level = options.level
    if level is not None and ("+" in level or not is_alone):
        own = CpuBackend().levels
        level = next((one for one in level.split("+") if (one not in own) is on_gpu), None)
    # Placement has already counted the weights of a GPU.
    budget = None if on_gpu else options.weight_memory
    return replace(options, device=None, gpu_layers=None, n_cpu_moe=None, weight_memory=budget, level=level)


def _surely_fits(plan: Plan, options: Options, card: Card) -> bool:
    """True if a plan certainly fits, by an upper bound. Otherwise the exact size has to be computed."""
    if options.weight_memory is not None:
        return False
    plans = [one for one in (plan, plan.draft) if one is not None]
    weights = {weight.name: weight for one in plans for weight in one.weights.values()}
    # A token table may be a matrix, too. Every tile kind takes at most four bytes per element.
    most = sum(w.n_bytes + 4 * math.prod(w.shape) + _PADDING for w in weights.values())
    cache = sum(cache_bytes(one, range(len(one.state)), options) for one in plans if not one.borrows)
    return most + cache + RESERVE + _VALUES <= card.free


def _close(cards: Sequence[Card]) -> None:
    for card in cards:
        card.device.close()
