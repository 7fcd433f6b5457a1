"""Validation of multimodal prompts against the limits of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from woolly.engine.multimodal.multimodal_input import MultimodalInput, read_prompt
from woolly.errors import RequestError

if TYPE_CHECKING:
    from woolly.engine.multimodal.tower import Tower
    from woolly.multimodal import Prompt
    from woolly.sampling.params import SamplingParams


def read_multimodal_prompt(
    prompt: Prompt, params: SamplingParams, tower: Tower | None, max_rows: int
) -> tuple[list[int], MultimodalInput]:
    """Return the tokens of a prompt with placeholders, and its multimodal input.

    Raise RequestError for unsupported input. `max_rows` bounds the rows of an image with bidirectional attention, which
    must fit one step.
    """
    if tower is None:
        raise RequestError(
            "this model was loaded without a projector (mmproj file) and takes no images or audio; load one, or"
            " send only text",
            field="prompt",
            names=(),
        )
    if params.context_shift or params.prompt_logprobs is not None:
        option = "context_shift" if params.context_shift else "prompt_logprobs"
        raise RequestError(f"{option} cannot be combined with images or audio; remove one of them", field=option)
    tokens, inputs = read_prompt(prompt, tower.identity)
    for place in inputs.placeholders:
        rows = place.placeholder
        encoder_input = rows.source.inputs[rows.index]
        tower.check(encoder_input, rows.source.kind)
        n_rows = tower.n_rows(encoder_input, rows.source.kind)
        if not 0 <= rows.first < rows.first + rows.n <= n_rows:
            raise RequestError(
                f"an encoder input has {n_rows} rows, but the placeholder ends at row {rows.first + rows.n}"
            )
        if rows.is_bidirectional and rows.n > max_rows:
            raise RequestError(
                f"an image has {rows.n} rows with bidirectional attention, but a step takes {max_rows}; raise chunk",
                names=("chunk",),
            )
    return tokens, inputs
