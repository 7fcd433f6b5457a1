"""Registry of samplers: `@sampler("top_p")` adds a class by name.

An installed package adds samplers with entry points of the group `woolly.samplers`: NAME = "package.module:Class". They
run if `SamplingParams.samplers` has their name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Protocol, TypeVar

from woolly.errors import RequestError
from woolly.sampling import samplers

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

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


GROUP = "woolly.samplers"

Kind = TypeVar("Kind", bound=type[SamplerStep])

_known: dict[str, type[SamplerStep]] = {}


def sampler(name: str) -> Callable[[Kind], Kind]:
    """Register the class under its name in `SamplingParams.samplers`."""

    def register(kind: Kind) -> Kind:
        _known[name] = kind
        return kind

    return register


@lru_cache(1)
def installed_samplers() -> dict[str, EntryPoint]:
    """Return the samplers of installed packages by name. Names of the project's own samplers are left out."""
    from importlib.metadata import entry_points  # imported late: takes 20 ms

    own = {found.name for found in iter_modules(samplers.__path__)}
    return {entry.name: entry for entry in entry_points(group=GROUP) if entry.name not in own}


def _load(name: str) -> type[SamplerStep]:
    """Return the class of an installed package."""
    where = installed_samplers()[name].value
    try:
        found = installed_samplers()[name].load()
    except Exception as error:  # any error of a foreign module
        raise RequestError(
            f"samplers: the entry point {name} = {where} of {GROUP} cannot be imported: {error}", field="samplers"
        ) from error
    if not (isinstance(found, type) and hasattr(found, "make") and hasattr(found, "apply")):
        raise RequestError(
            f"samplers: the entry point {name} = {where} of {GROUP} must name a class with make and apply",
            field="samplers",
        )
    return found


def find_sampler(name: str) -> type[SamplerStep]:
    """Return the class with a name; import `samplers/NAME.py` or an installed package unless it is registered."""
    if name not in _known and name in installed_samplers():
        _known[name] = _load(name)
    if name not in _known:
        import_module(f"woolly.sampling.samplers.{name}")
    return _known[name]
