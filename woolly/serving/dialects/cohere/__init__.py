"""Cohere's API: /v2/rerank and /v2/embed."""

from collections.abc import Mapping
from typing import Any

from woolly.serving.dialect import Dialect
from woolly.serving.dialects.cohere import embed, rerank
from woolly.serving.errors import ApiError, error_body
from woolly.serving.router import APIRouter

__all__ = ["DIALECT", "Cohere"]


class Cohere(Dialect):
    """Version 2 of Cohere's API, without chat."""

    name = "cohere"
    prefix = "/v2"

    def __init__(self) -> None:
        self.router = APIRouter(tags=["Cohere"])
        for part in (embed, rerank):
            self.router.include_router(part.router)

    def error(self, error: ApiError) -> Mapping[str, Any]:
        """Return Cohere's error message together with OpenAI's error object."""
        body = error_body(error)
        return {"message": body["error"]["message"], **body}


DIALECT = Cohere()
