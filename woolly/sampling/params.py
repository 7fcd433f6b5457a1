"""SamplingParams: sampling, penalties, structure and stop conditions of a request."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from woolly.sampling.checks import check
from woolly.sampling.option import option
from woolly.sampling.unknown_arguments import suggest_names

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from typing_extensions import Unpack

# Samplers in default order.
SAMPLERS = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")


@suggest_names
@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Sampling parameters with the names, defaults and order of llama.cpp.

    Values that are out of range, or that have no effect, raise RequestError.

    The chain: penalties and dry lower the logits of repetitions; top_n_sigma, top_k, typ_p, top_p, min_p and xtc
    exclude candidates; temperature flattens or sharpens the distribution; one candidate is drawn. `samplers` changes
    the order. A temperature of 0 or less chooses the most likely candidate. Mirostat replaces all samplers except
    temperature, and `custom_sampler` replaces the complete chain; parameters of replaced samplers must have their
    defaults.
    """

    # fmt: off
    max_tokens: int | None = option(
        None, "Maximum answer tokens; by default, the answer ends when the model ends it or the context is full.",
        low=1, group="Answer",
    )
    temperature: float = option(
        0.8, "0 always chooses the most likely token; higher values give more varied answers.", typed_low=0.0, off=1.0,
        sampler="temperature", flags="--temperature --temp", group="Answer",
    )
    # -s is the seed, as in `serve` and in llama.cpp.
    seed: int | None = option(
        None, "Random seed; equal seeds give equal answers. -1 for random.", low=0, high=2**32 - 1, typed_low=-1,
        flags="--seed -s", shown="random", group="Answer",
    )
    stop: tuple[str, ...] = option(
        (), "Strings that end the answer and are not part of it.", group="Answer", label="Stop sequences",
    )

    top_k: int = option(
        40, "Draw from this many most likely tokens; 0 or -1 for all.", low=-1, off=0, sampler="top_k", flags="--top-k",
        group="Samplers",
    )
    top_p: float = option(
        0.95, "Draw from the most likely tokens with this total probability; 1 for all.", low=0.0, high=1.0, off=1.0,
        sampler="top_p", flags="--top-p", group="Samplers",
    )
    min_p: float = option(
        0.05, "Minimum probability, relative to the most likely token; 0 is off.", low=0.0, high=1.0, off=0.0,
        sampler="min_p", flags="--min-p", group="Samplers",
    )
    typical_p: float = option(
        1.0, "Draw from the most typical tokens with this total probability; 1 for all.", low=0.0, high=1.0, off=1.0,
        sampler="typ_p", flags="--typical --typical-p", group="Samplers",
    )
    top_n_sigma: float = option(
        -1.0, "Maximum distance to the largest logit in standard deviations; 0 or less is off.", off=-1.0,
        sampler="top_n_sigma", flags="--top-nsigma --top-n-sigma", group="Samplers",
    )
    xtc_probability: float = option(
        0.0, "Probability of excluding the most likely tokens (XTC); 0 is off.", low=0.0, high=1.0, off=0.0,
        sampler="xtc", flags="--xtc-probability", group="Samplers", label="XTC probability",
    )
    xtc_threshold: float = option(
        0.1, "XTC excludes tokens above this probability; above 0.5 it is off.", low=0.0, high=1.0, sampler="xtc",
        needs=("xtc_probability",), flags="--xtc-threshold", group="Samplers", label="XTC threshold",
    )
    min_keep: int = option(
        0, "Minimum number of candidates after each sampler.", low=0, off=0, sampler="*", group="Samplers",
        label="Keep at least", unit="tokens",
    )
    dynatemp_range: float = option(
        0.0, "Range of the entropy-based temperature, up and down; 0 is off.", low=0.0, off=0.0,
        sampler="temperature", flags="--dynatemp-range", group="Samplers", label="Dynamic temperature",
    )
    dynatemp_exponent: float = option(
        1.0, "Exponent of the entropy-based temperature.", low=0.0, sampler="temperature",
        needs=("dynatemp_range",), flags="--dynatemp-exp", group="Samplers", label="Dynamic exponent",
    )

    repeat_penalty: float = option(
        1.0, "Above 1, repeated tokens become less likely; 1 is off.", low=1e-38, typed_low=0.01, off=1.0,
        sampler="penalties", flags="--repeat-penalty", group="Repetition",
    )
    presence_penalty: float = option(
        0.0, "Lowers the logits of used tokens; 0 is off.", off=0.0, sampler="penalties", flags="--presence-penalty",
        group="Repetition",
    )
    frequency_penalty: float = option(
        0.0, "Lowers the logits of tokens by their number of occurrences; 0 is off.", off=0.0, sampler="penalties",
        flags="--frequency-penalty", group="Repetition",
    )
    repeat_last_n: int = option(
        64, "Number of last tokens for the three penalties; 0 for none, -1 for all.", low=-1, sampler="penalties",
        needs=("repeat_penalty", "presence_penalty", "frequency_penalty"), flags="--repeat-last-n", group="Repetition",
        label="Look back", unit="tokens",
    )
    dry_multiplier: float = option(
        0.0, "Penalty for tokens that continue a repetition (DRY); 0 is off.", low=0.0, off=0.0, sampler="dry",
        flags="--dry-multiplier", group="Repetition", label="DRY multiplier",
    )
    dry_base: float = option(
        1.75, "Growth of the DRY penalty per token of the repetition.", low=1.0, sampler="dry",
        needs=("dry_multiplier",), flags="--dry-base", group="Repetition", label="DRY base",
    )
    dry_allowed_length: int = option(
        2, "Repetitions up to this length have no penalty.", low=0, sampler="dry", needs=("dry_multiplier",),
        flags="--dry-allowed-length", group="Repetition", label="DRY allowed length", unit="tokens",
    )
    dry_penalty_last_n: int = option(
        -1, "Number of last tokens for DRY; 0 for none, -1 for all.", low=-1, sampler="dry", needs=("dry_multiplier",),
        flags="--dry-penalty-last-n", group="Repetition", label="DRY look back", unit="tokens",
    )
    dry_sequence_breakers: tuple[str, ...] = option(
        ("\n", ":", '"', "*"), "Strings that end a repetition.", sampler="dry", needs=("dry_multiplier",),
        flags="--dry-sequence-breaker", group="Repetition", label="DRY breakers",
    )

    mirostat: int = option(
        0, "Mirostat version 1 or 2, which controls the surprise and replaces other samplers; 0 is off.",
        low=0, high=2, off=0, flags="--mirostat", group="Mirostat", choices=("Off", "Version 1", "Version 2"),
    )
    mirostat_tau: float = option(
        5.0, "Target surprise of Mirostat in bits.", low=0.0, needs=("mirostat",), flags="--mirostat-ent",
        group="Mirostat", label="Tau",
    )
    mirostat_eta: float = option(
        0.1, "Learning rate of Mirostat.", low=0.0, needs=("mirostat",), flags="--mirostat-lr",
        group="Mirostat", label="Eta",
    )

    reasoning_budget: int | None = option(
        None, "Maximum reasoning tokens before the answer; 0 for no reasoning, -1 for no limit.", low=-1,
        flags="--reasoning-budget", shown="no limit", group="More", label="Thinking budget", unit="tokens",
    )
    reasoning_budget_message: str | None = option(
        None, "Text to insert when the budget ends the reasoning.", needs=("reasoning_budget",),
        flags="--reasoning-budget-message",
    )
    min_tokens: int = option(
        0, "Minimum answer tokens before the model may end the answer.", low=0, group="More",
    )
    ignore_eos: bool = option(
        False, "Never let the model end the answer.", flags="--ignore-eos", group="More", label="Ignore EOS",
    )
    context_shift: bool = option(
        False, "Drop old tokens when the context is full, instead of ending the answer.", off=False,
        flags="--context-shift", group="More",
    )
    n_keep: int = option(
        0, "Number of first prompt tokens that a shift never drops; -1 for all.", low=-1, needs=("context_shift",),
        flags="--keep", group="More", label="Keep tokens",
    )
    samplers: tuple[str, ...] = option(
        SAMPLERS, "Samplers to run, in order, such as top_k;temperature.", off=SAMPLERS, sampler="*",
        flags="--samplers", group="More", label="Sampler order", form="names",
    )
    logit_bias: Mapping[int | str, float] = option(
        None, "Values to add to the logits of token ids, or of the tokens of a string; False or -inf to ban.",
        factory=dict, hash=False, flags="--logit-bias -l", group="More", form="json",
    )
    diffusion_steps: int | None = option(
        None, "Denoising steps of an answer; by default one per token.", low=1, flags="--diffusion-steps",
        shown="one per token", group="Diffusion", label="Steps",
    )
    diffusion_block_length: int | None = option(
        None, "Tokens of a block; blocks are filled in from left to right. By default 32 or the complete answer.",
        low=1, flags="--diffusion-block-length", shown="the model's", group="Diffusion", label="Block length",
        unit="tokens",
    )
    diffusion_algorithm: int | None = option(
        None, "Order in which tokens are filled in.", low=0, high=4, flags="--diffusion-algorithm",
        shown="the model's", group="Diffusion", label="Order",
        choices=("Origin", "Entropy", "Margin", "Random", "Confidence"),
    )
    diffusion_alg_temp: float = option(
        0.0, "Temperature for drawing the order; 0 for the surest tokens first.", low=0.0,
        flags="--diffusion-alg-temp", group="Diffusion", label="Order temperature",
    )
    diffusion_cfg_scale: float = option(
        0.0, "Classifier-free guidance: the weight of the prompt; 0 is off.", low=0.0, flags="--diffusion-cfg-scale",
        group="Diffusion", label="Guidance",
    )
    diffusion_eps: float | None = option(
        None, "Last time of a continuous schedule; by default 0.001, or equal steps for models with blocks.",
        low=0.0, high=1.0, flags="--diffusion-eps", shown="the model's", group="Diffusion", label="Last time",
    )
    # fmt: on
    stop_token_ids: tuple[int, ...] = option((), "Token ids that end the answer and are not included in it.")

    n: int = option(1, "Number of answers; answer i uses seed + i.", low=1)
    logprobs: int | None = option(
        None,
        "Number of alternatives per token; by default, no log-probabilities.",
        low=0,
    )
    prompt_logprobs: int | None = option(
        None, "Number of alternatives per prompt token; by default, no log-probabilities.", low=0
    )
    post_sampling_probs: bool = option(False, "Log-probabilities after the samplers instead of before.")

    json_schema: Mapping[str, Any] | str | type | None = option(  # noqa: RUF009
        None, "JSON schema or pydantic class that the answer must match."
    )
    json_object: bool = option(False, "The answer must be a JSON object.")
    regex: str | None = option(None, "Regular expression that the complete answer must match.")
    choice: tuple[str, ...] = option((), "Strings of which the answer must be one.")
    lark: str | None = option(None, "Grammar for the answer, in llguidance's Lark dialect.")
    grammar: str | None = option(None, "Grammar for the answer, in GBNF.")

    logits_processors: tuple[
        Callable[[Sequence[int], npt.NDArray[np.float32]], npt.NDArray[np.float32] | None], ...
    ] = option((), "Functions (ids so far, logits) that edit the logits in place or return new logits.")
    custom_sampler: Callable[[Sequence[int], npt.NDArray[np.float32]], int] | None = option(  # noqa: RUF009
        None,
        "Function (ids so far, logits) that returns the token and replaces all samplers.",
    )

    adapters: Mapping[str | int, float] | None = option(
        None, "Scale of each adapter, by name or number; 1 for all by default.", hash=False
    )

    if TYPE_CHECKING:  # otherwise, checkers would reject lists for tuples, which __post_init__ converts

        def __init__(self, **options: Unpack[SamplingOptions]) -> None: ...

    def __post_init__(self) -> None:
        check(self)

    @property
    def structure(self) -> tuple[str, str] | None:
        """Kind of structure that the answer must match, and its source in canonical form."""
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
    """Keyword arguments with the fields of SamplingParams, for type checkers. A tuple can be given as any sequence."""

    max_tokens: int | None
    temperature: float
    seed: int | None
    stop: Sequence[str]
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
    dry_sequence_breakers: Sequence[str]
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    reasoning_budget: int | None
    reasoning_budget_message: str | None
    min_tokens: int
    ignore_eos: bool
    context_shift: bool
    n_keep: int
    samplers: Sequence[str]
    logit_bias: Mapping[int | str, float]
    diffusion_steps: int | None
    diffusion_block_length: int | None
    diffusion_algorithm: int | None
    diffusion_alg_temp: float
    diffusion_cfg_scale: float
    diffusion_eps: float | None
    stop_token_ids: Sequence[int]
    n: int
    logprobs: int | None
    prompt_logprobs: int | None
    post_sampling_probs: bool
    json_schema: Mapping[str, Any] | str | type | None
    json_object: bool
    regex: str | None
    choice: Sequence[str]
    lark: str | None
    grammar: str | None
    logits_processors: Sequence[Callable[[Sequence[int], npt.NDArray[np.float32]], npt.NDArray[np.float32] | None]]
    custom_sampler: Callable[[Sequence[int], npt.NDArray[np.float32]], int] | None
    adapters: Mapping[str | int, float] | None
