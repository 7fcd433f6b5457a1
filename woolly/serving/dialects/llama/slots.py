"""GET and POST /slots: running requests, and the recorded tokens of slots."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import Query, Request
from pydantic import BaseModel, ConfigDict

from woolly.engine import Engine
from woolly.engine import Request as EngineRequest
from woolly.runtime import PAGE_SIZE
from woolly.serving.dialects.llama.parameters import generation_settings
from woolly.serving.dialects.llama.slot_files import read_slot, slot_path, write_slot
from woolly.serving.errors import ApiError, feature_disabled, invalid_param
from woolly.serving.gate.request_id import client_of, owner_of
from woolly.serving.generation.generator import GenerationRequest, Generator
from woolly.serving.generation.slots import SlotContents
from woolly.serving.model_manager.manager import ModelManager
from woolly.serving.router import APIRouter
from woolly.serving.settings.table import Settings

router = APIRouter()


@router.get("/slots")
async def slots(request: Request, fail_on_no_slot: int = Query(0, ge=0, le=1)) -> list[dict[str, Any]]:
    """Return one entry per slot. A slot records the tokens of its last request.

    If keys are set, clients see the parameters of their own requests only, because stop strings and grammars are
    private.
    """
    settings: Settings = request.app.state.settings
    models: ModelManager = request.app.state.models
    if not settings.slots:
        raise feature_disabled("GET /slots", "--slots")
    generator: Generator = request.app.state.generator
    info = await models.get(None)
    owner = owner_of(request)
    requests = [(one, running.owner == owner) for running in generator.running for one in running.requests]
    # Waiting requests are not in the batch yet.
    running = [pair for pair in requests if pair[0].finish_reason is None and pair[0].pages][: len(generator.slots)]
    if fail_on_no_slot and len(running) >= len(generator.slots):
        raise ApiError(503, "no_slot_available", "all slots are in use", retry_after=1.0)
    model = models.ready(info.name)
    guesses = model is not None and model.is_speculative
    idle = {"id_task": -1, "n_ctx": info.context_length, "speculative": guesses}
    return [
        {"id": i, **idle, **(_busy(*running[i]) if i < len(running) else {"is_processing": False})}
        for i in range(len(generator.slots))
    ]


class SlotFile(BaseModel):
    """Name of a slot file in the folder of --slot-save-path."""

    model_config = ConfigDict(extra="forbid", strict=True)

    filename: str | None = None
    model: str | None = None


@router.post("/slots/{id_slot}")
async def change_slot(id_slot: int, request: Request, action: str = "", body: SlotFile | None = None) -> dict[str, Any]:
    """Save the tokens of a slot's last request to a file, restore them, or erase them from the cache."""
    given = body or SlotFile()
    if action == "erase":
        return await _erase(id_slot, request, given)
    if action not in ("save", "restore"):
        raise invalid_param("action", f"expected save, restore or erase, but got {action[:40]!r}")
    settings: Settings = request.app.state.settings
    if settings.slot_save_path is None:
        raise feature_disabled("saving and restoring slots", "--slot-save-path")
    if given.filename is None:
        raise invalid_param("filename", "missing; send the name of a slot file")
    path = slot_path(settings.slot_save_path, given.filename)
    return await (_save if action == "save" else _restore)(id_slot, request, given, path)


async def _save(id_slot: int, request: Request, body: SlotFile, path: Path) -> dict[str, Any]:
    models: ModelManager = request.app.state.models
    generator: Generator = request.app.state.generator
    started = time.monotonic()
    owner = owner_of(request)
    contents = generator.slots.contents(id_slot, owner)
    if contents.has_source:
        raise invalid_param(
            "id_slot", f"the last request of slot {id_slot} used an encoder, which slot files do not support"
        )
    if contents.digests is not None:
        raise invalid_param(
            "id_slot", f"the last request of slot {id_slot} had an image, which slot files do not support"
        )
    info = await models.get(contents.model or body.model)
    n_bytes = await asyncio.to_thread(write_slot, path, info, owner, contents.tokens)
    return {
        "id_slot": id_slot,
        "filename": body.filename,
        "n_saved": len(contents.tokens),
        "n_written": n_bytes,
        "timings": {"save_ms": 1000 * (time.monotonic() - started)},
    }


async def _restore(id_slot: int, request: Request, body: SlotFile, path: Path) -> dict[str, Any]:
    """Prefill the tokens into the cache without generating."""
    models: ModelManager = request.app.state.models
    generator: Generator = request.app.state.generator
    owner = owner_of(request)
    generator.slots.contents(id_slot, owner)  # raises for an unknown slot
    started = time.monotonic()
    salt = b""
    async with models.use(body.model) as slot:
        tokens, n_bytes = await asyncio.to_thread(read_slot, path, slot.info, owner, slot.model.tokenizer.n_vocab)
        if tokens:
            params = replace(await generator.defaults_for(slot.info.name), max_tokens=1, n=1)
            generation = GenerationRequest(
                params, tuple(tokens), slot.info.name, True, client=client_of(request), owner=owner, id_slot=id_slot
            )
            with generator.admit() as admitted:
                async with generator.open(generation, admitted, slot) as running:
                    await running.completion()
                    salt = running.requests[0].salt
    generator.slots.record(id_slot, slot.info.name, owner, tokens, salt)
    return {
        "id_slot": id_slot,
        "filename": body.filename,
        "n_restored": len(tokens),
        "n_read": n_bytes,
        "timings": {"restore_ms": 1000 * (time.monotonic() - started)},
    }


async def _erase(id_slot: int, request: Request, body: SlotFile) -> dict[str, Any]:
    """Remove the slot's tokens from the cache, unless a running request uses them, and return their number."""
    models: ModelManager = request.app.state.models
    generator: Generator = request.app.state.generator
    owner = owner_of(request)
    contents = generator.slots.contents(id_slot, owner)
    n_erased = 0
    if contents.tokens and (slot := models.ready(contents.model)) is not None:
        n_erased = await asyncio.to_thread(slot.model.driver.call, partial(_forget, contents))
    generator.slots.record(id_slot, "", owner, ())
    return {"id_slot": id_slot, "n_erased": n_erased}


def _forget(contents: SlotContents, engine: Engine) -> int:
    """Return the number of tokens removed from the cache. The last partial page counts if all pages were removed."""
    n_pages = engine.forget(contents.tokens, contents.salt, contents.digests)
    return len(contents.tokens) if n_pages == len(contents.tokens) // PAGE_SIZE else n_pages * PAGE_SIZE


def _busy(request: EngineRequest, is_own: bool) -> dict[str, Any]:
    n_decoded = len(request.output)
    limit = request.max_tokens
    return {
        "id_task": request.id,
        "is_processing": True,
        "params": generation_settings(request.params, limit=limit) if is_own else {},
        "next_token": [
            {
                "has_next_token": request.finish_reason is None,
                "has_new_line": is_own and "\n" in request.text,
                "n_remain": -1 if limit is None else limit - n_decoded,
                "n_decoded": n_decoded,
            }
        ],
    }
