"""Settings of diffusion decoding, and the parameters that it rejects."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal, get_args

from woolly.errors import RequestError
from woolly.sampling.option import options_of
from woolly.sampling.params import SamplingParams

if TYPE_CHECKING:
    from woolly.engine.request_options import RequestOptions
    from woolly.plan import MaskedDiffusion

# Numbered as in llama.cpp's --diffusion-algorithm.
Algorithm = Literal["origin", "entropy", "margin", "random", "confidence"]

_LENGTH = 256  # answer tokens if the request has no limit
_BLOCK = 32  # LLaDA's block length
_MAX_LOGITS = 1 << 30  # bytes; a step computes the logits of all masked tokens of a block
_EPS = 1e-3  # last time of Dream's schedule
_USED = {"adapters", "ignore_eos", "max_tokens", "n", "seed", "stop", "stop_token_ids", "temperature", "top_k", "top_p"}
_OWN = "diffusion_"


@dataclass(frozen=True)
class DiffusionSettings:
    """Settings of one answer."""

    steps: int
    block_length: int
    algorithm: Algorithm
    alg_temp: float
    cfg_scale: float
    eps: float | None  # last time of the schedule; None: equal numbers of tokens per step
    temperature: float
    top_k: int
    top_p: float
    seed: int


def answer_length(params: SamplingParams, room: int, model: MaskedDiffusion, n_vocab: int) -> int:
    """Return the number of answer tokens, which is fixed before decoding.

    Raise RequestError if the logits of a step would be too large.
    """
    length = min(room, params.max_tokens or _LENGTH)
    block_length = _block_length(params, length, model)
    # Classifier-free guidance computes the logits twice.
    most = _MAX_LOGITS // (4 * n_vocab * (2 if params.diffusion_cfg_scale else 1))
    if block_length > most:
        raise RequestError(
            f"the answer has blocks of {block_length} tokens, but a step may have logits of {_MAX_LOGITS >> 20} MiB,"
            f" which suffice for {most} tokens; set max_tokens or diffusion_block_length to at most {most}",
            field="diffusion_block_length" if params.diffusion_block_length else "max_tokens",
            limit=most,
            given=block_length,
        )
    return length


def read_settings(params: SamplingParams, length: int, model: MaskedDiffusion, seed: int) -> DiffusionSettings:
    """Return the settings of an answer. Defaults are those of the model's published procedure.

    Models with shifted logits (Dream, RND1) fill the complete answer at once, by entropy over continuous time. Others
    (LLaDA) fill blocks from left to right, by confidence.
    """
    block_length = _block_length(params, length, model)
    number = params.diffusion_algorithm
    usual: Algorithm = "entropy" if model.is_shifted else "confidence"
    eps = params.diffusion_eps
    if eps is None and model.is_shifted and block_length == length:
        eps = _EPS
    return DiffusionSettings(
        steps=params.diffusion_steps or length,
        block_length=block_length,
        algorithm=usual if number is None else get_args(Algorithm)[number],
        alg_temp=params.diffusion_alg_temp,
        cfg_scale=params.diffusion_cfg_scale,
        eps=eps,
        temperature=max(0.0, params.temperature),
        top_k=max(0, params.top_k),
        top_p=params.top_p,
        seed=seed,
    )


def _block_length(params: SamplingParams, length: int, model: MaskedDiffusion) -> int:
    return min(length, params.diffusion_block_length or (length if model.is_shifted else _BLOCK))


def check_diffusion_request(params: SamplingParams, options: RequestOptions) -> None:
    """Raise RequestError for parameters that diffusion decoding cannot honor."""
    usual = SamplingParams()
    changed = [field.name for field in fields(params) if getattr(params, field.name) != getattr(usual, field.name)]
    for name in changed:
        if name not in _USED and not name.startswith(_OWN) and not _is_off(params, name):
            raise RequestError(
                f"{name} is set, but diffusion language models fill in tokens in any order and do not support it;"
                " leave it out",
                field=name,
            )
    given = {
        "hooks": options.hooks,
        "replay_tokens": options.replay_tokens,
        "reasoning_ends": options.reasoning_ends,
    }
    for name, value in given.items():
        if value:
            raise RequestError(f"{name} is not supported for diffusion language models; leave it out", field=name)


def _is_off(params: SamplingParams, name: str) -> bool:
    """Return True for a value that disables a sampler, which is always so here."""
    option = options_of(SamplingParams)[name]
    return option.off is not None and bool(getattr(params, name) == option.off)
