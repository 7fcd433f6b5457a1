"""Router whose routes use the JSON that the middleware has parsed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute, APIWebSocketRoute
from starlette.routing import BaseRoute

from woolly.serving.errors import ApiError
from woolly.serving.unknown_fields import body_fields, resolve_unknown_fields

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

_MAX_ROUNDS = 8  # validations of a body, because a list reports only its first unknown field


class ParsedRequest(Request):
    """A request with the body parsed by gate/request_body.py; Starlette would parse it again."""

    async def json(self) -> Any:
        """Return the JSON value of the body. Raises ApiError if the body is not valid JSON."""
        value = self.scope["state"].get("json")
        if isinstance(value, ApiError):
            raise value
        return value


class ParsedRoute(APIRoute):
    """A route that uses ParsedRequest and handles unknown fields."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the request handler."""
        handle = super().get_route_handler()
        known = body_fields(None if self.body_field is None else self.body_field.field_info.annotation)

        async def handle_parsed(request: Request) -> Response:
            # The middleware has checked the Content-Type. Some dialects accept any type, because `curl -d` sends
            # a form type; AccessMiddleware rejects other origins.
            others = [header for header in request.scope["headers"] if header[0] != b"content-type"]
            request.scope["headers"] = [*others, (b"content-type", b"application/json")]
            parsed = ParsedRequest(request.scope, request.receive)
            if self.body_field is not None:
                await parsed.json()  # raise here, because FastAPI would replace the message
            for _ in range(_MAX_ROUNDS):
                try:
                    return await handle(parsed)
                except RequestValidationError as error:
                    # Break the cycle of FastAPI's frame, the error with the body, and its traceback, which would keep
                    # each body until the next full garbage collection.
                    error.__traceback__ = None
                    if not resolve_unknown_fields(await parsed.json(), error.errors(), known):
                        raise error.with_traceback(None) from None
            return await handle(parsed)

        return handle_parsed


@dataclass(frozen=True)
class _Declared:
    """Path, function and options of a declared route."""

    path: str
    endpoint: Callable[..., Any]
    methods: tuple[str, ...]  # empty for a WebSocket
    options: Mapping[str, Any]


class APIRouter:
    """Router for a part of the server. FastAPI analyzes each route once, in `add_to`.

    FastAPI's router analyzes a route when it is declared and again when the router is included, and resolves nested
    routers for each request.
    """

    def __init__(
        self,
        *,
        prefix: str = "",
        tags: Sequence[str] = (),
        include_in_schema: bool = True,
        lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None,
    ) -> None:
        self._prefix, self._tags, self._is_in_schema, self.lifespan = prefix, list(tags), include_in_schema, lifespan
        self._parts: list[_Declared | BaseRoute | APIRouter] = []

    def api_route(self, path: str, *, methods: Sequence[str], **options: Any) -> Callable[[Endpoint], Endpoint]:
        """Declare a route for the decorated function, with FastAPI's `options`."""

        def declare(endpoint: Endpoint) -> Endpoint:
            self._parts.append(_Declared(path, endpoint, tuple(methods), options))
            return endpoint

        return declare

    def get(self, path: str, **options: Any) -> Callable[[Endpoint], Endpoint]:
        """Declare a GET route."""
        return self.api_route(path, methods=["GET"], **options)

    def head(self, path: str, **options: Any) -> Callable[[Endpoint], Endpoint]:
        """Declare a HEAD route."""
        return self.api_route(path, methods=["HEAD"], **options)

    def post(self, path: str, **options: Any) -> Callable[[Endpoint], Endpoint]:
        """Declare a POST route."""
        return self.api_route(path, methods=["POST"], **options)

    def put(self, path: str, **options: Any) -> Callable[[Endpoint], Endpoint]:
        """Declare a PUT route."""
        return self.api_route(path, methods=["PUT"], **options)

    def patch(self, path: str, **options: Any) -> Callable[[Endpoint], Endpoint]:
        """Declare a PATCH route."""
        return self.api_route(path, methods=["PATCH"], **options)

    def delete(self, path: str, **options: Any) -> Callable[[Endpoint], Endpoint]:
        """Declare a DELETE route."""
        return self.api_route(path, methods=["DELETE"], **options)

    def websocket(self, path: str) -> Callable[[Endpoint], Endpoint]:
        """Declare a WebSocket route."""
        return self.api_route(path, methods=[])

    def add_route(self, route: BaseRoute) -> None:
        """Add an existing route object."""
        self._parts.append(route)

    def include_router(self, router: APIRouter) -> None:
        """Add the routes of another router, in order."""
        self._parts.append(router)

    def lifespans(self) -> Iterator[Callable[[FastAPI], AbstractAsyncContextManager[None]]]:
        """Yield the lifespans of this router and its included routers."""
        if self.lifespan is not None:
            yield self.lifespan
        for part in self._parts:
            if isinstance(part, APIRouter):
                yield from part.lifespans()

    def add_to(self, app: FastAPI) -> None:
        """Add the routes to an app."""
        app.router.routes.extend(self._routes("", [], True))

    def _routes(self, prefix: str, tags: list[str], is_in_schema: bool) -> Iterator[BaseRoute]:
        prefix, tags, is_in_schema = prefix + self._prefix, [*tags, *self._tags], is_in_schema and self._is_in_schema
        for part in self._parts:
            if isinstance(part, APIRouter):
                yield from part._routes(prefix, tags, is_in_schema)
            elif not isinstance(part, _Declared):
                yield part
            elif not part.methods:
                yield APIWebSocketRoute(prefix + part.path, part.endpoint)
            else:
                options = dict(part.options)
                options["include_in_schema"] = is_in_schema and options.get("include_in_schema", True)
                yield ParsedRoute(prefix + part.path, part.endpoint, methods=[*part.methods], tags=[*tags], **options)
