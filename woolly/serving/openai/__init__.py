"""OPENAI: /v1/models, /v1/chat/completions and /v1/completions, in OpenAI's words."""

from fastapi import APIRouter

from woolly.serving.openai import chat, completions, models
from woolly.serving.openai.stream import sse

__all__ = ["router", "sse"]

router = APIRouter(tags=["OpenAI"])
router.include_router(models.router)
router.include_router(chat.router)
router.include_router(completions.router)
