"""Checks that a model fits into memory before it is loaded."""

from __future__ import annotations

from pathlib import Path

from woolly.engine import describe_draft, possible_ctx
from woolly.engine.loading import memory_estimate
from woolly.engine.loading.memory_estimate import MemoryEstimate
from woolly.engine.multimodal import source_backend
from woolly.gguf import open_gguf
from woolly.llm.model_options import ModelOptions
from woolly.llm.projector import choose_projector
from woolly.llm.speculation import embedded_draft
from woolly.models import trace
from woolly.runtime import Options, parse_size
from woolly.serving.errors import ApiError


def estimate(path: Path, options: ModelOptions) -> MemoryEstimate:
    """Return the minimum memory of the model. Raises the errors of an invalid file or `ctx`."""
    with open_gguf(path) as file:
        plan = trace(file, ctx=options.ctx)
        if options.stages:  # memory is on the machines of the stages
            return MemoryEstimate(0, 0, possible_ctx(file, plan, options.ctx, options.kv_type))
        plan = describe_draft(file, plan, options.ctx, *embedded_draft(path, options.speculation))
        budget = parse_size("weight_memory", options.weight_memory)
        placed = {"device": options.device, "gpu_layers": options.gpu_layers, "n_cpu_moe": options.n_cpu_moe}
        given = Options(None, budget, options.kv_type, **placed)  # type: ignore[arg-type]
        projector = choose_projector(path, options.mmproj)
        backend = source_backend(options.backend, given) if plan.has_source else options.backend
        return memory_estimate.estimate(file, plan, backend, given, options.ctx, options.kv_tokens, projector)


def check_memory(name: str, needed: MemoryEstimate, freed: int = 0) -> None:
    """Raise ApiError 503 if the model needs more than the available memory plus `freed` bytes of unloaded models."""
    if reason := memory_estimate.shortage(name, needed, freed):
        advice = "unload another model, lower ctx_size or weight_memory, or choose a smaller model"
        raise ApiError(503, "insufficient_memory", reason, suggestion=advice)
