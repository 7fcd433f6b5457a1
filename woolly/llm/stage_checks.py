"""Validation of load options with pipeline stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from woolly.errors import RequestError
from woolly.runtime import Stages

if TYPE_CHECKING:
    from woolly.llm.model_options import ModelOptions


def parse_stages(given: ModelOptions, adapters: Mapping[str, object]) -> Stages | None:
    """Return the addresses of the stages, or None without stages; raise RequestError for unsupported options."""
    if not given.stages:
        return None
    alone = {
        "adapters": adapters,
        "control_vectors": given.control_vectors,
        "metadata": given.metadata,
        "rope_scaling": given.rope_scaling,
        "rope_scale": given.rope_scale,
        "rope_freq_base": given.rope_freq_base,
        "yarn_orig_ctx": given.yarn_orig_ctx,
        "cache_disk": given.cache_disk,
        "device": given.device,
    }
    for name, value in alone.items():
        if value:
            raise RequestError(
                f"{name} is not supported with stages; remove one of them",
                field=name,
                names=(name, "stages"),
            )
    return Stages.parse(given.stages, given.stage_token_file)
