"""GET and POST /lora-adapters: adapters of --lora and --lora-scaled with their scales."""

from __future__ import annotations

from typing import Any

from fastapi import Request

from woolly.engine.loading.adapters import scales_of
from woolly.errors import RequestError
from woolly.serving.dialects.adapter_scales import adapter_scales
from woolly.serving.dialects.sampling_parameters import Items
from woolly.serving.errors import ApiError
from woolly.serving.gate.request_id import check_admin
from woolly.serving.generation.generator import Generator
from woolly.serving.router import APIRouter

router = APIRouter()


@router.get("/lora-adapters")
async def list_adapters(request: Request) -> list[dict[str, Any]]:
    """List the adapters of --model with their default scales."""
    state = request.app.state
    pairs = zip(state.settings.adapters, state.generator.adapter_scales, strict=True)
    return [{"id": i, "path": path, "scale": scale} for i, ((path, _), scale) in enumerate(pairs)]


@router.post("/lora-adapters")
async def scale_adapters(scales: Items[dict[str, Any]], request: Request) -> dict[str, bool]:
    """Set the default scales of the adapters; unlisted adapters get 0.

    The scales change the answers of all clients, so the route requires an admin key.
    """
    check_admin(request)
    generator: Generator = request.app.state.generator
    names = [str(number) for number in range(len(generator.adapter_scales))]
    try:
        generator.adapter_scales = scales_of(adapter_scales(scales, "lora"), names)
    except RequestError as error:
        raise ApiError(400, "invalid_request", str(error), param="scale") from None
    return {"success": True}
