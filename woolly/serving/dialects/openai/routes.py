"""/v1/chat/completions and /v1/completions."""

from __future__ import annotations

from woolly.serving.dialects.completions.chat import chat_completions
from woolly.serving.dialects.completions.replies import ChatReply, CompletionReply
from woolly.serving.dialects.completions.text import text_completions
from woolly.serving.router import APIRouter

__all__ = ["router"]

router = APIRouter()
router.post("/v1/chat/completions", responses={200: {"model": ChatReply}}, response_model=None)(chat_completions)
router.post("/v1/completions", responses={200: {"model": CompletionReply}}, response_model=None)(text_completions)
