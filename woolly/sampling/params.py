"""SamplingParams: how a request wants its tokens chosen, and when to stop."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from woolly.sampling.checks import check
from woolly.sampling.option import option
from woolly.sampling.unknown_arguments import with_near_names

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# The samplers by name, in the order in which they run unless `samplers` gives another.
SAMPLERS = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")


@with_near_names
@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Sampling parameters. Names, defaults and order are llama.cpp's; a value that is out of range, or that nothing
    reads because of another one, is refused.

    The chain: penalties and dry lower what repeats; top_n_sigma, top_k, typ_p, top_p, min_p and xtc narrow the
    candidates; temperature flattens or sharpens what remains; one is drawn. `samplers` gives another order.
    A temperature of 0 or less takes the likeliest of what remains. Mirostat stands in for the whole chain but the
    temperature, and `custom_sampler` for all of it: fields of samplers that do not run must be left at their defaults.
    """

    # fmt: off
    max_tokens: int | None = option(
        None, "Most tokens of the answer; without it, the answer ends when the model ends it or the context is full.",
        low=1, group="Answer",
    )
    temperature: float = option(
        0.8, "0 takes the likeliest token each time; higher values are more varied.", typed_low=0.0, off=1.0,
        sampler="temperature", flags="--temperature --temp", group="Answer",
    )
    # -s is the seed, as in `serve` and in llama.cpp.
    seed: int | None = option(
        None, "The same seed gives the same answer; -1 for a random one.", low=0, high=2**32 - 1, typed_low=-1,
        flags="--seed -s", shown="random", group="Answer",
    )
    stop: tuple[str, ...] = option(
        (), "Texts that end the answer and are not part of it.", group="Answer", label="Stop sequences",
    )

    top_k: int = option(
        40, "Draw from this many likeliest tokens; 0 or -1 for all.", low=-1, off=0, sampler="top_k", flags="--top-k",
        group="Samplers",
    )
    top_p: float = option(
        0.95, "Draw from the likeliest tokens that add up to this share; 1 for all.", low=0.0, high=1.0, off=1.0,
        sampler="top_p", flags="--top-p", group="Samplers",
    )
    min_p: float = option(
        0.05, "Drop tokens less likely than this share of the likeliest; 0 for none.", low=0.0, high=1.0, off=0.0,
        sampler="min_p", flags="--min-p", group="Samplers",
    )
    typical_p: float = option(
        1.0, "Keep tokens about as surprising as expected, up to this share; 1 for all.", low=0.0, high=1.0, off=1.0,
        sampler="typ_p", flags="--typical --typical-p", group="Samplers",
    )
    top_n_sigma: float = option(
        -1.0, "Keep tokens within this many standard deviations of the best; 0 or less for all.", off=-1.0,
        sampler="top_n_sigma", flags="--top-nsigma --top-n-sigma", group="Samplers",
    )
    xtc_probability: float = option(
        0.0, "How often the likeliest tokens are left out (XTC); 0 for never.", low=0.0, high=1.0, off=0.0,
        sampler="xtc", flags="--xtc-probability", group="Samplers", label="XTC probability",
    )
    xtc_threshold: float = option(
        0.1, "XTC leaves out tokens likelier than this; above 0.5, none.", low=0.0, high=1.0, sampler="xtc",
        needs=("xtc_probability",), flags="--xtc-threshold", group="Samplers", label="XTC threshold",
    )
    min_keep: int = option(
        0, "Candidates that each narrowing leaves at least.", low=0, off=0, sampler="*", group="Samplers",
        label="Keep at least", unit="tokens",
    )
    dynatemp_range: float = option(
        0.0, "How far the temperature follows the entropy, up and down; 0 for not at all.", low=0.0, off=0.0,
        sampler="temperature", flags="--dynatemp-range", group="Samplers", label="Dynamic temperature",
    )
    dynatemp_exponent: float = option(
        1.0, "The exponent with which the temperature follows the entropy.", low=0.0, sampler="temperature",
        needs=("dynatemp_range",), flags="--dynatemp-exp", group="Samplers", label="Dynamic exponent",
    )

    repeat_penalty: float = option(
        1.0, "Above 1, tokens that were used become less likely; 1 is off.", low=1e-38, typed_low=0.01, off=1.0,
        sampler="penalties", flags="--repeat-penalty", group="Repetition",
    )
    presence_penalty: float = option(
        0.0, "Lowers tokens that were used at all; 0 is off.", off=0.0, sampler="penalties", flags="--presence-penalty",
        group="Repetition",
    )
    frequency_penalty: float = option(
        0.0, "Lowers tokens by how often they were used; 0 is off.", off=0.0, sampler="penalties",
        flags="--frequency-penalty", group="Repetition",
    )
    repeat_last_n: int = option(
        64, "Tokens that the three penalties look back on; 0 for none, -1 for all.", low=-1, sampler="penalties",
        needs=("repeat_penalty", "presence_penalty", "frequency_penalty"), flags="--repeat-last-n", group="Repetition",
        label="Look back", unit="tokens",
    )
    dry_multiplier: float = option(
        0.0, "Penalty on what would continue a repeated passage (DRY); 0 is off.", low=0.0, off=0.0, sampler="dry",
        flags="--dry-multiplier", group="Repetition", label="DRY multiplier",
    )
    dry_base: float = option(
        1.75, "How DRY's penalty grows with each further token of the passage.", low=1.0, sampler="dry",
        needs=("dry_multiplier",), flags="--dry-base", group="Repetition", label="DRY base",
    )
    dry_allowed_length: int = option(
        2, "Passages up to this length may repeat.", low=0, sampler="dry", needs=("dry_multiplier",),
        flags="--dry-allowed-length", group="Repetition", label="DRY allowed length", unit="tokens",
    )
    dry_penalty_last_n: int = option(
        -1, "Tokens that DRY looks back on; 0 for none, -1 for all.", low=-1, sampler="dry", needs=("dry_multiplier",),
        flags="--dry-penalty-last-n", group="Repetition", label="DRY look back", unit="tokens",
    )
    dry_sequence_breakers: tuple[str, ...] = option(
        ("\n", ":", '"', "*"), "Texts that no repeated passage reaches over.", sampler="dry", needs=("dry_multiplier",),
        flags="--dry-sequence-breaker", group="Repetition", label="DRY breakers",
    )

    mirostat: int = option(
        0, "Version of Mirostat, 1 or 2, which aims at a steady surprise in place of the other samplers; 0 is off.",
        low=0, high=2, off=0, flags="--mirostat", group="Mirostat", choices=("Off", "Version 1", "Version 2"),
    )
    mirostat_tau: float = option(
        5.0, "The surprise that Mirostat aims at, in bits.", low=0.0, needs=("mirostat",), flags="--mirostat-ent",
        group="Mirostat", label="Tau",
    )
    mirostat_eta: float = option(
        0.1, "How fast Mirostat corrects the surprise.", low=0.0, needs=("mirostat",), flags="--mirostat-lr",
        group="Mirostat", label="Eta",
    )

    reasoning_budget: int | None = option(
        None, "Most tokens that a model may think before it answers; 0 for no thoughts, -1 for no limit.", low=-1,
        flags="--reasoning-budget", shown="no limit", group="More", label="Thinking budget", unit="tokens",
    )
    reasoning_budget_message: str | None = option(
        None, "Text that ends a thought which its budget cuts off.", needs=("reasoning_budget",),
        flags="--reasoning-budget-message",
    )
    min_tokens: int = option(
        0, "Before this many tokens, the model may not end its answer.", low=0, group="More",
    )
    ignore_eos: bool = option(
        False, "The model may not end its answer at all.", flags="--ignore-eos", group="More", label="Ignore EOS",
    )
    context_shift: bool = option(
        False, "Drop old tokens when the context is full, instead of ending.", off=False, group="More",
    )
    n_keep: int = option(
        0, "First tokens of the prompt that a shift never drops; -1 for all.", low=-1, needs=("context_shift",),
        group="More", label="Keep tokens",
    )
    samplers: tuple[str, ...] = option(
        SAMPLERS, "The samplers that run, in order, such as top_k;temperature.", off=SAMPLERS, sampler="*",
        flags="--samplers", group="More", label="Sampler order", form="names",
    )
    logit_bias: Mapping[int | str, float] = option(
        None, "What is added to the logits of token ids, or of the tokens of a text; False or -inf for never.",
        factory=dict, hash=False, flags="--logit-bias -l", group="More", form="json",
    )
    # fmt: on
    stop_token_ids: tuple[int, ...] = option((), "Tokens that end the answer and are not part of it.")

    n: int = option(1, "Number of answers; the i-th is drawn with seed + i.", low=1)
    logprobs: int | None = option(
        None,
        "Number of alternatives beside each chosen token; without it, no log-probabilities.",
        low=0,
    )
    prompt_logprobs: int | None = option(None, "The same for the tokens of the prompt.", low=0)
    post_sampling_probs: bool = option(
        False, "Log-probabilities as the samplers leave them, not as the model gave them."
    )

    json_schema: Mapping[str, Any] | str | type | None = option(  # noqa: RUF009
        None, "JSON schema that the answer follows, or a pydantic class."
    )
    json_object: bool = option(False, "The answer is a JSON object.")
    regex: str | None = option(None, "Regular expression that the answer matches as a whole.")
    choice: tuple[str, ...] = option((), "The answer is one of these texts.")
    lark: str | None = option(None, "Grammar in llguidance's Lark that the answer follows.")
    grammar: str | None = option(None, "Grammar in GBNF that the answer follows.")

    logits_processors: tuple[
        Callable[[Sequence[int], npt.NDArray[np.float32]], npt.NDArray[np.float32] | None], ...
    ] = option((), "Functions (ids so far, logits) that edit the logits in place or return others.")
    custom_sampler: Callable[[Sequence[int], npt.NDArray[np.float32]], int] | None = option(  # noqa: RUF009
        None,
        "Function (ids so far, logits) that returns the token, in place of all samplers.",
    )

    adapters: Mapping[str | int, float] | None = option(
        None, "How much of each adapter of the model, by name or number; without it, 1 of each.", hash=False
    )

    def __post_init__(self) -> None:
        check(self)

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


class SamplingOptions(TypedDict, total=False):
    """The fields of SamplingParams as keywords of a call, for type checkers; a test keeps the two in step."""

    max_tokens: int | None
    temperature: float
    seed: int | None
    stop: tuple[str, ...]
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    min_keep: int
    dynatemp_range: float
    dynatemp_exponent: float
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    repeat_last_n: int
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: tuple[str, ...]
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    reasoning_budget: int | None
    reasoning_budget_message: str | None
    min_tokens: int
    ignore_eos: bool
    context_shift: bool
    n_keep: int
    samplers: tuple[str, ...]
    logit_bias: Mapping[int | str, float]
    stop_token_ids: tuple[int, ...]
    n: int
    logprobs: int | None
    prompt_logprobs: int | None
    post_sampling_probs: bool
    json_schema: Mapping[str, Any] | str | type | None
    json_object: bool
    regex: str | None
    choice: tuple[str, ...]
    lark: str | None
    grammar: str | None
    logits_processors: tuple[Callable[[Sequence[int], npt.NDArray[np.float32]], npt.NDArray[np.float32] | None], ...]
    custom_sampler: Callable[[Sequence[int], npt.NDArray[np.float32]], int] | None
    adapters: Mapping[str | int, float] | None
