"""Registry of samplers: `@sampler("top_p")` adds a class by name."""

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
    """Values that a sampler may use in addition to its parameters."""

    history: History  # grows with each token
    tokenizer: Tokenizer | None
    seed: int


class SamplerStep(Protocol):
    """Sampler of a sequence.

    Optional attributes: `n_top_logits`, the number of top logits that usually suffice; `only_lowers`, true if it only
    lowers logits. Without these, the sampler reads all logits of a row.
    """

    @classmethod
    def make(cls, params: SamplingParams, context: SamplerContext) -> SamplerStep | None:
        """Return a sampler for these parameters, or None if they disable it."""

    def apply(self, candidates: Candidates) -> None:
        """Remove candidates or change their logits."""


Kind = TypeVar("Kind", bound=type[SamplerStep])

_known: dict[str, type[SamplerStep]] = {}


def sampler(name: str) -> Callable[[Kind], Kind]:
    """Register the class under its name in `SamplingParams.samplers`."""

    def register(kind: Kind) -> Kind:
        _known[name] = kind
        return kind

    return register


def find_sampler(name: str) -> type[SamplerStep]:
    """Return the class with a name; import `samplers/NAME.py` unless it is registered."""
    if name not in _known:
        import_module(f"woolly.sampling.samplers.{name}")
    return _known[name]
