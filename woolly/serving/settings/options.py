"""ModelOptions: how a model is opened, as `LLM` takes it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from woolly.serving.settings.table import Settings

__all__ = ["ModelOptions"]


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The keyword arguments of `LLM`, with its names and defaults."""

    backend: str = "auto"
    device: str | None = None
    threads: int | None = None
    ctx: int | None = None
    kv_tokens: int | None = None
    weight_memory: int | str | None = None
    kv_type: str | None = None
    gpu_layers: int | str | None = None
    max_running: int = 16
    chunk: int | None = None
    speculation: str = "auto"
    draft_tokens: int = 8
    adapters: tuple[str, ...] = ()
    control_vectors: tuple[tuple[str, float], ...] = ()
    control_vector_layers: tuple[int, int] | None = None
    chat_template: str | None = None
    cache_disk: str | None = None
    cache_disk_folder: Path | None = None
    stages: tuple[str, ...] = ()
    stage_token_file: Path | None = None

    @classmethod
    def of(cls, settings: Settings) -> ModelOptions:
        """Returns how the settings open a model; reads --chat-template-file."""
        from woolly.engine.opening.control_vectors import (  # imported late: --help does without NumPy
            layer_range,
            vectors_of,
        )

        layers = settings.control_vector_layer_range
        sizes = [size for size in (settings.batch_size, settings.ubatch_size) if size is not None]
        return cls(
            backend=settings.backend if settings.optimized_inference else "reference",
            device=settings.device,
            threads=settings.threads,
            ctx=settings.request_ctx,
            kv_tokens=settings.kv_tokens,
            weight_memory=settings.weight_memory,
            kv_type=settings.cache_type_k,
            gpu_layers=settings.gpu_layers,
            max_running=settings.parallel,
            chunk=min(sizes, default=None),
            speculation=settings.model_draft,
            draft_tokens=settings.draft_max,
            adapters=tuple(file for file, _ in settings.adapters),
            control_vectors=vectors_of(settings.control_vector, settings.control_vector_scaled),
            control_vector_layers=None if layers is None else layer_range(layers),
            chat_template=settings.given_template,
            cache_disk=settings.cache_disk,
            cache_disk_folder=settings.cache_disk_folder,
            stages=settings.stages,
            stage_token_file=settings.stage_token_file,
        )
