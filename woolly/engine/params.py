"""SamplingParams: how a request wants its tokens chosen, and when to stop."""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from woolly.errors import RequestError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["SAMPLERS", "SamplingParams"]

# The samplers by name, in the order in which they run unless `samplers` gives another.
SAMPLERS = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")

_STRUCTURES = ("json_schema", "json_object", "regex", "choice", "lark", "grammar")

# The sampler that reads a field, and the value at which the field asks for nothing.
_READ_BY: dict[str, tuple[str, Any]] = {
    "repeat_penalty": ("penalties", 1.0),
    "presence_penalty": ("penalties", 0.0),
    "frequency_penalty": ("penalties", 0.0),
    "dry_multiplier": ("dry", 0.0),
    "top_n_sigma": ("top_n_sigma", -1.0),
    "top_k": ("top_k", 0),
    "typical_p": ("typ_p", 1.0),
    "top_p": ("top_p", 1.0),
    "min_p": ("min_p", 0.0),
    "xtc_probability": ("xtc", 0.0),
    "temperature": ("temperature", 1.0),
    "dynatemp_range": ("temperature", 0.0),
}

# Fields that only another one gives a meaning: by the one, which is off at these values.
_PART_OF: dict[str, tuple[tuple[str, Any], ...]] = {
    "mirostat_tau": (("mirostat", 0),),
    "mirostat_eta": (("mirostat", 0),),
    "xtc_threshold": (("xtc_probability", 0.0),),
    "dynatemp_exponent": (("dynatemp_range", 0.0),),
    "dry_base": (("dry_multiplier", 0.0),),
    "dry_allowed_length": (("dry_multiplier", 0.0),),
    "dry_penalty_last_n": (("dry_multiplier", 0.0),),
    "dry_sequence_breakers": (("dry_multiplier", 0.0),),
    "repeat_last_n": (("repeat_penalty", 1.0), ("presence_penalty", 0.0), ("frequency_penalty", 0.0)),
}

_LARGEST = 3.4e38  # the samplers compute in float32


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Names, defaults and order are llama.cpp's. A value out of range, or one that contradicts another, is refused.

    The chain: penalties and dry lower what repeats; top_n_sigma, top_k, typ_p, top_p, min_p and xtc narrow the
    candidates; temperature flattens or sharpens what remains; one is drawn. `samplers` gives another order.
    A temperature of 0 or less takes the likeliest of what remains. Mirostat stands in for the whole chain but the
    temperature, and `custom_sampler` for all of it: fields of samplers that do not run must be left at their defaults.
    """

    max_tokens: int | None = None  # None: until the model ends its answer or the context is full
    min_tokens: int = 0  # before so many, the tokens that end an answer are not chosen
    n: int = 1  # answers; the i-th is drawn with seed + i
    seed: int | None = None  # None: another one each time

    temperature: float = 0.8  # 0 or less: the likeliest token each time
    dynatemp_range: float = 0.0  # 0: off; else the temperature follows the entropy, this much up and down
    dynatemp_exponent: float = 1.0  # how the temperature follows it
    top_k: int = 40  # 0 or -1: all
    top_p: float = 0.95  # 1: all
    min_p: float = 0.05  # 0: all
    typical_p: float = 1.0  # 1: all
    top_n_sigma: float = -1.0  # 0 or less: all
    xtc_probability: float = 0.0  # 0: never
    xtc_threshold: float = 0.1  # above 0.5: never
    min_keep: int = 0  # candidates that each narrowing leaves at least
    samplers: tuple[str, ...] = SAMPLERS  # which of the chain run, in this order

    repeat_penalty: float = 1.0  # 1: off
    presence_penalty: float = 0.0  # lowers tokens that were used at all
    frequency_penalty: float = 0.0  # lowers tokens by how often they were used
    repeat_last_n: int = 64  # tokens that the three penalties look back on; 0: none, -1: all
    dry_multiplier: float = 0.0  # 0: off
    dry_base: float = 1.75  # grows the penalty with each further token that repeats
    dry_allowed_length: int = 2  # repeats so long are free
    dry_penalty_last_n: int = -1  # tokens that dry looks back on; 0: none, -1: all
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")  # no repeat reaches over them

    mirostat: int = 0  # 0: off, 1 or 2: the version
    mirostat_tau: float = 5.0  # the surprise to hold, in bits
    mirostat_eta: float = 0.1  # how fast it is corrected

    logit_bias: Mapping[int | str, float] = field(
        default_factory=dict, hash=False
    )  # False or -inf: never; text: each of its tokens
    ignore_eos: bool = False  # the model's own end tokens are never chosen
    stop: tuple[str, ...] = ()  # texts that end the answer and are not part of it
    stop_token_ids: tuple[int, ...] = ()  # tokens that do

    logprobs: int | None = None  # how many alternatives beside the chosen token; 0: none of them
    prompt_logprobs: int | None = None  # the same for the tokens of the prompt
    context_shift: bool = False  # drop old tokens when the context is full, instead of ending
    n_keep: int = 0  # first tokens of the prompt that a shift keeps; -1: all of it

    json_schema: Mapping[str, Any] | str | None = None  # the answer is JSON of this schema
    json_object: bool = False  # it is a JSON object
    regex: str | None = None  # it matches this expression as a whole
    choice: tuple[str, ...] = ()  # it is one of these
    lark: str | None = None  # it follows this grammar in llguidance's Lark
    grammar: str | None = None  # it follows this grammar in GBNF

    # f(ids so far, logits) may edit the logits in place or give others; f(ids so far, logits) gives the token.
    logits_processors: tuple[
        Callable[[Sequence[int], npt.NDArray[np.float32]], npt.NDArray[np.float32] | None], ...
    ] = ()
    custom_sampler: Callable[[Sequence[int], npt.NDArray[np.float32]], int] | None = None

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_lists()
        self._check_structure()
        self._check_chain()
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(f"min_tokens is {self.min_tokens}, but max_tokens is only {self.max_tokens}")
        if self.n_keep != 0 and not self.context_shift:
            raise RequestError(f"n_keep is {self.n_keep}, but without context_shift nothing is ever dropped")

    @property
    def structure(self) -> tuple[str, str] | None:
        """The kind of structure that the answer must have, and its source in one canonical spelling."""
        if self.json_schema is not None:
            return "json_schema", str(self.json_schema)
        if self.json_object:
            return "json_object", ""
        if self.choice:
            return "choice", json.dumps(self.choice, ensure_ascii=False)
        for kind in ("regex", "lark", "grammar"):
            if (source := getattr(self, kind)) is not None:
                return kind, source
        return None

    def _check_numbers(self) -> None:
        if self.max_tokens is not None:
            self._whole("max_tokens", 1)
        self._whole("min_tokens", 0)
        self._whole("n", 1)
        if self.seed is not None:
            self._whole("seed", 0, 2**32 - 1)
        self._number("temperature", -_LARGEST)
        self._number("dynatemp_range", 0.0)
        self._number("dynatemp_exponent", 0.0)
        self._whole("top_k", -1)
        for name in ("top_p", "min_p", "typical_p", "xtc_probability", "xtc_threshold"):
            self._number(name, 0.0, 1.0)
        self._number("top_n_sigma", -_LARGEST)
        self._whole("min_keep", 0)
        self._number("repeat_penalty", 1e-38)
        self._number("presence_penalty", -_LARGEST)
        self._number("frequency_penalty", -_LARGEST)
        self._whole("repeat_last_n", -1)
        self._number("dry_multiplier", 0.0)
        self._number("dry_base", 1.0)
        self._whole("dry_allowed_length", 0)
        self._whole("dry_penalty_last_n", -1)
        self._whole("mirostat", 0, 2)
        self._number("mirostat_tau", 0.0)
        self._number("mirostat_eta", 0.0)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                self._whole(name, 0)
        self._whole("n_keep", -1)
        for name in ("ignore_eos", "context_shift", "json_object"):
            if not isinstance(value := getattr(self, name), bool):
                raise RequestError(f"{name} is {value!r}; True or False was expected")

    def _check_lists(self) -> None:
        for name in ("stop", "dry_sequence_breakers", "choice"):
            self._texts(name)
        for text in self.dry_sequence_breakers:
            if len(text.encode()) > 40:
                raise RequestError(f"dry_sequence_breakers holds {text!r}; each may have at most 40 bytes")
        self._tuple("samplers", "names")
        for sampler in self.samplers:
            if sampler not in SAMPLERS:
                raise RequestError(f"samplers names {sampler!r}; the known ones are {', '.join(SAMPLERS)}")
            if self.samplers.count(sampler) > 1:
                raise RequestError(f"samplers names {sampler!r} twice; each may run once")
        self._tuple("stop_token_ids", "token ids")
        for token in self.stop_token_ids:
            if isinstance(token, bool) or not isinstance(token, numbers.Integral) or token < 0:
                raise RequestError(f"stop_token_ids holds {token!r}; each must be a token id")
        object.__setattr__(self, "stop_token_ids", tuple(map(int, self.stop_token_ids)))
        self._tuple("logits_processors", "callables")
        if not all(callable(processor) for processor in self.logits_processors):
            raise RequestError(f"logits_processors is {list(self.logits_processors)!r}; each must be callable")
        if self.custom_sampler is not None and not callable(self.custom_sampler):
            raise RequestError(f"custom_sampler is {self.custom_sampler!r}; a callable was expected")
        if not isinstance(self.logit_bias, Mapping):
            raise RequestError(f"logit_bias is {self.logit_bias!r}; a mapping of ids or texts to numbers was expected")
        biases = {key: self._bias(key, bias) for key, bias in self.logit_bias.items()}
        object.__setattr__(
            self, "logit_bias", {key if isinstance(key, str) else int(key): bias for key, bias in biases.items()}
        )

    def _check_structure(self) -> None:
        for name in ("regex", "lark", "grammar"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise RequestError(f"{name} is {value!r}; a text that is not empty was expected")
        if self.json_schema is not None:
            object.__setattr__(self, "json_schema", _canonical_schema(self.json_schema))
        given = [name for name in _STRUCTURES if getattr(self, name) not in (None, False, ())]
        if len(given) > 1:
            raise RequestError(f"{' and '.join(given)} are given together; an answer can have one structure")
        for name in ("ignore_eos", "min_tokens"):
            if given and (value := getattr(self, name)):
                raise RequestError(f"{name} is {value!r}, but {given[0]} decides where the answer ends")

    def _check_chain(self) -> None:
        """No parameter is silently ignored: what a sampler that does not run would have read is refused."""
        running: tuple[str, ...]
        if self.custom_sampler is not None:
            running, reason = (), "custom_sampler chooses the token by itself"
            if self.mirostat:
                raise RequestError(f"mirostat is {self.mirostat}, but {reason}")
        elif self.mirostat:
            running, reason = ("temperature",), f"mirostat={self.mirostat} stands in for the samplers"
            if self.dynatemp_range:
                raise RequestError(f"dynatemp_range is {self.dynatemp_range!r}, but mirostat takes one temperature")
        else:
            running, reason = self.samplers, "samplers leaves {sampler} out"
        if (self.custom_sampler is not None or self.mirostat) and self.samplers != SAMPLERS:
            raise RequestError(f"samplers is {list(self.samplers)!r}, but {reason}")
        if (self.custom_sampler is not None or self.mirostat) and self.min_keep:
            raise RequestError(f"min_keep is {self.min_keep}, but {reason}")
        for name, masters in _PART_OF.items():
            if all(getattr(self, master) == off for master, off in masters) and not self._is_default(name):
                what = " and ".join(f"{master}={off:g}" for master, off in masters)
                raise RequestError(f"{name} is {getattr(self, name)!r}, but {what} makes no use of it")
        for name, (sampler, off) in _READ_BY.items():
            value = getattr(self, name)
            if sampler not in running and value not in (off, _DEFAULTS[name]):
                raise RequestError(f"{name} is {value!r}, but {reason.format(sampler=sampler)}")

    def _is_default(self, name: str) -> bool:
        """Up to the rounding of a client that keeps its numbers in float32."""
        value, default = getattr(self, name), _DEFAULTS[name]
        return value == default or (isinstance(default, float) and math.isclose(value, default, rel_tol=1e-6))

    def _whole(self, name: str, low: int, high: int | None = None) -> None:
        value = getattr(self, name)
        sound = not isinstance(value, bool) and isinstance(value, numbers.Integral)
        if not sound or value < low or (high is not None and value > high):
            upper = "" if high is None else f" and at most {high}"
            raise RequestError(f"{name} is {value!r}; a whole number of at least {low}{upper} was expected")
        object.__setattr__(self, name, int(value))

    def _number(self, name: str, low: float, high: float = _LARGEST) -> None:
        value = getattr(self, name)
        sound = not isinstance(value, bool) and isinstance(value, numbers.Real) and math.isfinite(value)
        if not sound or not low <= value <= high:
            lower = "" if low == -_LARGEST else f" of at least {low:g}"
            upper = "" if high == _LARGEST else f" and at most {high:g}"
            raise RequestError(f"{name} is {value!r}; a number{lower}{upper} was expected")
        if not isinstance(value, (int, float)):
            object.__setattr__(self, name, float(value))

    def _tuple(self, name: str, what: str) -> None:
        value = getattr(self, name)
        if isinstance(value, tuple):
            return
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            raise RequestError(f"{name} is {value!r}; a list of {what} was expected")
        object.__setattr__(self, name, tuple(value))

    def _texts(self, name: str) -> None:
        value = getattr(self, name)
        if isinstance(value, str):
            object.__setattr__(self, name, (value,))
        elif not isinstance(value, tuple):
            try:
                object.__setattr__(self, name, tuple(value))
            except TypeError:
                raise RequestError(f"{name} is {value!r}; a string or a list of strings was expected") from None
        if not all(isinstance(text, str) and text for text in getattr(self, name)):
            raise RequestError(f"{name} is {list(getattr(self, name))!r}; each must be a string that is not empty")

    @staticmethod
    def _bias(key: Any, value: Any) -> float:
        sound = not isinstance(key, bool) and isinstance(key, (numbers.Integral, str))
        if not sound or key == "" or (not isinstance(key, str) and key < 0):
            raise RequestError(f"logit_bias names {key!r}; a token id or a text was expected")
        if value is False or value == -math.inf:
            return -math.inf
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or not abs(float(value)) <= _LARGEST:
            raise RequestError(f"logit_bias of {key!r} is {value!r}; a number, or False for never, was expected")
        return float(value)


_DEFAULTS: dict[str, Any] = {f.name: f.default for f in fields(SamplingParams)}


def _canonical_schema(schema: Any) -> str:
    """JSON text without spaces; the order of the keys stays, because answers follow the order of the properties."""
    try:
        value = json.loads(schema) if isinstance(schema, str) else schema
        if not isinstance(value, (Mapping, bool)):
            raise ValueError
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=dict)
    except (ValueError, TypeError, RecursionError):
        raise RequestError(
            f"json_schema is {str(schema)[:80]!r}; a JSON schema, as a mapping or as its text, was expected"
        ) from None
