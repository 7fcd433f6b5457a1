"""Conversion of server settings to model options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from woolly.llm.model_options import ModelOptions, rows_of
from woolly.runtime.options import join_kv_types

if TYPE_CHECKING:
    from woolly.serving.settings.table import Settings


def _kv_type(settings: Settings) -> str | None:
    """Return the combined KV cache type, or None if the backend decides."""
    return join_kv_types(settings.cache_type_k, settings.cache_type_v, ("cache_type_k", "cache_type_v"))


def options_from(settings: Settings) -> ModelOptions:
    """Return the options of `LLM`, some of which combine several settings.

    Reads --chat-template-file.
    """
    from woolly.engine.loading.control_vectors import (  # imported late, because --help must not need NumPy
        layer_range,
        vectors_of,
    )

    layers = settings.control_vector_layer_range
    sizes = [size for size in (settings.batch_size, settings.ubatch_size) if size is not None]
    plain: dict[str, Any] = {
        row.name: getattr(settings, row.setting_name) for row in rows_of().values() if row.setting is not None
    }
    together = {
        "backend": settings.backend if settings.optimized_inference else "reference",
        "ctx": settings.request_ctx,
        "chunk": min(sizes, default=None),
        "kv_type": _kv_type(settings),
        "adapters": tuple(file for file, _ in settings.adapters),
        "control_vectors": vectors_of(settings.control_vector, settings.control_vector_scaled),
        "control_vector_layers": None if layers is None else layer_range(layers),
        "chat_template": settings.given_template,
    }
    return ModelOptions(**plain | together)
