"""GET /slots: what runs at present."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Query, Request

from woolly.engine import Sequence
from woolly.serving.errors import ApiError
from woolly.serving.generation import Generator
from woolly.serving.llama.parameters import generation_settings
from woolly.serving.models import ModelManager
from woolly.serving.settings import Settings

__all__ = ["change_slot", "router", "slots"]

router = APIRouter()


@router.get("/slots")
async def slots(request: Request, fail_on_no_slot: int = Query(0, ge=0, le=1)) -> list[dict[str, Any]]:
    """One entry for each request that can run at once; a slot is a place in the batch and remembers nothing."""
    settings: Settings = request.app.state.settings
    models: ModelManager = request.app.state.models
    if not settings.slots:
        raise ApiError(404, "not_supported", "this server does not show what it runs; start it without --no-slots")
    generator: Generator = request.app.state.generator
    info = await models.get(None)
    sequences = [sequence for running in generator.running for sequence in running.requests]
    # A waiting one has no place in the batch yet.
    running = [s for s in sequences if s.finish_reason is None and s.pages][: settings.parallel]
    if fail_on_no_slot and len(running) >= settings.parallel:
        raise ApiError(503, "no_slot_available", "all slots are in use", retry_after=1.0)
    idle = {"id_task": -1, "n_ctx": info.context_length, "speculative": settings.model_draft is not None}
    return [
        {"id": i, **idle, **(_busy(running[i]) if i < len(running) else {"is_processing": False})}
        for i in range(settings.parallel)
    ]


@router.post("/slots/{id_slot}")
async def change_slot(id_slot: int, action: str = "") -> None:
    """Saving, restoring and erasing a slot's cache, which all requests share here."""
    raise ApiError(
        400,
        "not_supported",
        "slots cannot be saved, restored or erased: prefixes are kept for all requests together",
    )


def _busy(sequence: Sequence) -> dict[str, Any]:
    n_decoded = len(sequence.output)
    limit = sequence.max_tokens
    return {
        "id_task": sequence.id,
        "is_processing": True,
        "params": generation_settings(sequence.params, limit=limit),
        "next_token": {
            "has_next_token": sequence.finish_reason is None,
            "has_new_line": "\n" in sequence.text,
            "n_remain": -1 if limit is None else limit - n_decoded,
            "n_decoded": n_decoded,
        },
    }
