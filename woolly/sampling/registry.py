"""The registry of samplers: `@sampler("top_p")` adds a class under its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from woolly.sampling.candidates import Candidates
    from woolly.sampling.history import History
    from woolly.sampling.params import SamplingParams
    from woolly.tokens import Tokenizer


@dataclass(frozen=True)
class SamplerContext:
    """Facts that a sampler may use besides its parameters."""

    history: History  # grows with each token
    tokenizer: Tokenizer | None
    seed: int


class SamplerStep(Protocol):
    """One sampler of one sequence.

    Optional attributes: `n_top_logits`, the number of top logits that usually decide its result; `only_lowers`,
    true if it only lowers logits. Without either, it reads all logits of a row.
    """

    @classmethod
    def make(cls, params: SamplingParams, context: SamplerContext) -> SamplerStep | None:
        """A sampler for these parameters; None if they ask for nothing."""

    def apply(self, candidates: Candidates) -> None:
        """Removes candidates or changes their logits."""


Kind = TypeVar("Kind", bound=type[SamplerStep])

_known: dict[str, type[SamplerStep]] = {}


def sampler(name: str) -> Callable[[Kind], Kind]:
    """Registers the class under the name that `SamplingParams.samplers` uses."""

    def register(kind: Kind) -> Kind:
        _known[name] = kind
        return kind

    return register


def find_sampler(name: str) -> type[SamplerStep]:
    """The class of a name; imports `samplers/NAME.py` unless the name is registered."""
    if name not in _known:
        import_module(f"woolly.sampling.samplers.{name}")
    return _known[name]
