"""APIRouter: FastAPI's router, whose routes take the JSON that the gate has parsed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import fastapi
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from woolly.serving.errors import ApiError
from woolly.serving.unknown_fields import body_fields, resolve_unknown_fields

_MAX_ROUNDS = 8  # of validating one body whose lists hide unknown fields behind each other


class ParsedRequest(Request):
    """A request whose body `gate/bodies.py` has parsed; Starlette's would parse it a second time."""

    async def json(self) -> Any:
        """Return the value of the body. ApiError if the gate found that it is not valid JSON."""
        value = self.scope["state"].get("json")
        if isinstance(value, ApiError):
            raise value
        return value


class ParsedRoute(APIRoute):
    """A route that gets its requests as ParsedRequest, without fields that it does not know."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers a request."""
        handle = super().get_route_handler()
        known = body_fields(None if self.body_field is None else self.body_field.field_info.annotation)

        async def handle_parsed(request: Request) -> Response:
            # The gate has decided what is JSON: in some dialects whatever its header says, because `curl -d` calls it a
            # form. The gate's checks of Host and Origin keep pages of others out.
            others = [header for header in request.scope["headers"] if header[0] != b"content-type"]
            request.scope["headers"] = [*others, (b"content-type", b"application/json")]
            parsed = ParsedRequest(request.scope, request.receive)
            if self.body_field is not None:
                await parsed.json()  # raises here: FastAPI would replace the message
            for _ in range(_MAX_ROUNDS):
                try:
                    return await handle(parsed)
                except RequestValidationError as error:
                    # FastAPI's frame refers to the error, which has the body, and the traceback to the frame: a cycle,
                    # which would keep each body until the next full collection.
                    error.__traceback__ = None
                    if not resolve_unknown_fields(await parsed.json(), error.errors(), known):
                        raise error.with_traceback(None) from None
            return await handle(parsed)

        return handle_parsed


class APIRouter(fastapi.APIRouter):
    """A router of ParsedRoutes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"route_class": ParsedRoute, **options})
