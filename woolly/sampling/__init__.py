"""Sampling: parameters, the chain of samplers, and the choice of a token."""

from importlib import import_module
from typing import TYPE_CHECKING

from woolly.sampling.option import Option, options_of
from woolly.sampling.params import SamplingParams

if TYPE_CHECKING:
    from woolly.sampling.logprobs import TokenLogprob, log_probabilities
    from woolly.sampling.sampler import Choice, Sampler

__all__ = ["Choice", "Option", "Sampler", "SamplingParams", "TokenLogprob", "log_probabilities", "options_of"]

# Imported on first access: the command line only reads the options, which need no NumPy.
_LAZY = {
    "Choice": "woolly.sampling.sampler",
    "Sampler": "woolly.sampling.sampler",
    "TokenLogprob": "woolly.sampling.logprobs",
    "log_probabilities": "woolly.sampling.logprobs",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'woolly.sampling' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
