"""GET /catalogue: models that can be downloaded, and whether they fit into memory."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastapi import Request

from woolly.machine.capacity import Capacity
from woolly.models import architectures
from woolly.serving.dialects.ole.models import server_capacity
from woolly.serving.model_manager.manager import ModelManager
from woolly.serving.router import APIRouter
from woolly.serving.settings.table import Settings
from woolly.store import models_folder, read_catalogue

router = APIRouter()


@router.get("/catalogue", summary="List the models that can be downloaded")
async def list_catalogue(request: Request) -> dict[str, Any]:
    """List the names for /api/pull with their sizes. `allowed` is true if the key may download them."""
    models: ModelManager = request.app.state.models
    settings: Settings = request.app.state.settings
    here = {name for info in await models.list() for name in (info.name, *info.aliases)}
    capacity = await asyncio.to_thread(server_capacity, models)
    if capacity is not None:
        capacity = replace(capacity, disk=await asyncio.to_thread(_free_disk, settings.folder))
    return {
        "allowed": settings.allow_pull and settings.folder == models_folder() and request.state.is_admin,
        "updated": read_catalogue().updated,
        "models": await asyncio.to_thread(_rows, here, capacity),
    }


def _rows(here: set[str], capacity: Capacity | None) -> list[dict[str, Any]]:
    """Return a row for each size of each family. `fits` is null if a GPU may hold part of a model."""
    can_run = set(architectures())
    rows = []
    for name, family in read_catalogue().families.items():
        for i, (tag, entry) in enumerate(family.tags.items()):
            full = f"{name}:{tag}"
            is_here = full in here or (i == 0 and name in here)
            fits = None if capacity is None else capacity.fit(entry.n_bytes, is_here=is_here)
            rows.append(
                {
                    "name": full,
                    "kind": family.purpose,
                    "size_bytes": entry.n_bytes,
                    "estimated": entry.is_estimated,
                    "parameters": entry.n_parameters,
                    "active": entry.n_active,
                    "quantization": entry.quant,
                    "architecture": entry.architecture,
                    "licence": entry.licence,
                    "fits": fits if entry.architecture in can_run else "not yet",
                    "here": is_here,
                }
            )
    return rows


def _free_disk(folder: Path) -> int:
    """Return the free bytes on the disk of the models folder, which may not exist yet."""
    try:
        existing = next((path for path in (folder, *folder.parents) if path.is_dir()), Path("/"))
        return shutil.disk_usage(existing).free
    except OSError:
        return 0
