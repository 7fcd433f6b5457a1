"""Selection of the pooler from the plan or the caller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from woolly.engine.input_processor import check_decoder_only
from woolly.engine.loading.step_names import find_norm, find_step
from woolly.engine.pooling.pooler import Float32, Pooler
from woolly.errors import RequestError

if TYPE_CHECKING:
    from woolly.gguf import Tensor
    from woolly.plan import Pooling
    from woolly.runtime import Program

_NORM = "output_norm"  # step before the output projection of a generative model
_CHOICES = ("mean", "cls", "last")


def make_pooler(program: Program, tensors: Mapping[str, Tensor], pooling: Pooling | None) -> Pooler | None:
    """Return the pooler, or None if neither the plan nor the caller specifies pooling."""
    if pooling is not None and pooling not in (*_CHOICES, "none"):
        raise RequestError(
            f"pooling is {pooling!r}; expected {', '.join(_CHOICES[:-1])} or {_CHOICES[-1]}", field="pooling"
        )
    plan = program.plan
    if plan.result == "logits":
        if pooling is None:
            return None
        check_decoder_only(plan)
        return _hidden_rows(program, tensors, pooling)
    if plan.pooling == "none":
        if pooling is None:
            return None
        return Pooler(pooling, plan.width, is_whole=not plan.is_causal)
    if pooling not in (None, plan.pooling):
        raise RequestError(f"pooling is {pooling!r}, but this model only supports {plan.pooling!r}", field="pooling")
    # The plan includes pooling, so its result has one row per text. A text needs a single batch unless pooling is
    # "last".
    is_whole = not plan.is_causal or plan.pooling in ("mean", "cls")
    return Pooler("last", plan.width, plan.result, is_whole=is_whole)


def _hidden_rows(program: Program, tensors: Mapping[str, Tensor], pooling: Pooling) -> Pooler:
    """Return the pooler for the final hidden states of a generative model, without computing logits."""
    plan = program.running_plan
    if (found := find_norm(program, _NORM)) is None:
        step = find_step(program, _NORM)
        width = plan.values[plan.steps[step].output].width
        return Pooler(pooling, width, last=step + 1, plan=plan, is_whole=not plan.is_causal)
    # The backend fuses the norm into the next step: read the norm's input and normalize it here.
    step, norm = found
    weight = tensors[norm.weights[0].name].dequantize()
    eps = norm.number("eps")

    def normed(rows: Float32) -> Float32:
        mean_square = np.mean(rows.astype(np.float64) ** 2, axis=-1, keepdims=True)
        out: Float32 = rows * (1.0 / np.sqrt(mean_square + eps)).astype(np.float32)
        return out * weight

    is_whole = not plan.is_causal
    return Pooler(pooling, len(weight), last=step + 1, finish=normed, plan=plan, is_whole=is_whole)
