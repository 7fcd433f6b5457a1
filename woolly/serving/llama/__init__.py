"""llama-server's own routes, with the fields that it documents."""

from fastapi import APIRouter

from woolly.serving.llama import completion, infill, props, slots, tokens

__all__ = ["router"]

router = APIRouter(tags=["llama-server"])
for part in (completion, infill, props, slots, tokens):
    router.include_router(part.router)
