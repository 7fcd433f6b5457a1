"""Errors for clients, and their JSON."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any

from woolly.errors import (
    DeviceError,
    RequestError,
    StageError,
    TemplateError,
    TokenizerError,
    UnsupportedError,
    WoollyError,
)

# OpenAI's error `type` by status; other statuses are invalid_request_error below 500, else server_error.
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "unavailable_error",
}

# API error codes by the code of a RequestError; all others are invalid_request.
_CODES = {"context_length": "context_length_exceeded", "wrong_model": "wrong_model"}

_NO_NAMES: Mapping[str, str] = {}

_MAX_MESSAGE = 600  # characters
_MAX_END = 200
_MAX_REASON = 300
_TAKEOVER = 5.0  # seconds after which another server may have taken over


class ApiError(WoollyError):
    """An error with an HTTP status that is sent to the client.

    `code` is machine-readable. `message` is one sentence that names the valid values, and `suggestion` the next step.
    `param` is the invalid field. `retry_after` is in seconds. `exceeds` is a value that is too large, and its limit.
    """

    code: str

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        suggestion: str | None = None,
        retry_after: float | None = None,
        details: Any = None,
        exceeds: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(message, code=code)
        self.status = status
        self.message = message
        self.param = param
        self.suggestion = suggestion
        self.retry_after = retry_after
        self.details = details
        self.exceeds = exceeds

    @property
    def client_message(self) -> str:
        """Message for the client: shortened in the middle, with invalid Unicode replaced."""
        text = self.message
        if len(text) > _MAX_MESSAGE:  # the end says what to do
            text = f"{text[: _MAX_MESSAGE - _MAX_END]}...{text[-_MAX_END:]}"
        return text.encode("utf-8", "replace").decode()

    @property
    def reason(self) -> str:
        """Code and beginning of the message, for the log."""
        return f"{self.code}: {self.client_message[:_MAX_REASON]}"

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers of the error: Retry-After and WWW-Authenticate."""
        headers = {}
        if self.retry_after is not None:
            headers["Retry-After"] = str(max(1, round(self.retry_after)))
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return headers


def answer_cancelled() -> ApiError:
    """Return the error for a request whose model was unloaded before the answer ended."""
    message = "the server stopped or unloaded the model before the answer was complete"
    return ApiError(503, "answer_cancelled", message, retry_after=_TAKEOVER)


def model_changed() -> ApiError:
    """Return the error for a request whose model file was truncated; the server then reloads the model."""
    message = "the model file changed while it was in use; retry the request to reload the model"
    return ApiError(503, "model_changed", message, param="model", retry_after=1.0)


def device_failed(message: str) -> ApiError:
    """Return the error for a request whose GPU failed."""
    return ApiError(503, "device_failed", message, retry_after=_TAKEOVER)


def server_stopping() -> ApiError:
    """Return the error for a request that arrives while the server drains."""
    return ApiError(503, "server_stopping", "the server is about to stop", retry_after=_TAKEOVER)


def error_body(error: ApiError) -> dict[str, Any]:
    """Return OpenAI's error object, which llama-server uses too."""
    kind = _TYPES.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    message = error.client_message if error.suggestion is None else f"{error.client_message}; {error.suggestion}"
    if error.code == "context_length_exceeded" and error.exceeds is not None:
        # Agents compact a conversation if the message contains OpenAI's wording.
        message = f"maximum context length is {error.exceeds[1]} tokens: {message}"
    return {"error": {"message": message, "type": kind, "param": error.param, "code": error.code}}


def feature_disabled(what: str, flag: str) -> ApiError:
    """Return the error for a route that is disabled in the settings."""
    return ApiError(501, "not_supported", f"{what} is disabled; start the server with {flag}")


def invalid_param(param: str, message: str) -> ApiError:
    """Return a 400 error that names a field."""
    return ApiError(400, "invalid_request", f"{param}: {message}", param=param)


def to_api_error(error: BaseException, params: Mapping[str, str] = _NO_NAMES) -> ApiError:
    """Return the ApiError for an exception, without details of internal errors.

    `params` maps fields of the engine to fields of the body where the names differ.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        field = error.field or ("prompt" if error.code == "context_length" else None)
        param = None if field is None else params.get(field, field)
        is_made = error.code == "grammar" and param != field  # the client does not know the grammar
        message = f"{param}: {error}" if is_made else str(error)
        if error.code == "busy":
            return ApiError(503, "busy", message, param=param, retry_after=_TAKEOVER)
        exceeds = None if error.given is None or error.limit is None else (int(error.given), int(error.limit))
        return ApiError(400, _CODES.get(error.code or "", "invalid_request"), message, param=param, exceeds=exceeds)
    if isinstance(error, (TemplateError, TokenizerError, UnsupportedError)):
        return ApiError(400, "invalid_request", str(error))
    if isinstance(error, StageError):
        return ApiError(503, "stage_lost", str(error), retry_after=_TAKEOVER)
    if isinstance(error, DeviceError):
        return device_failed(f"{error.fault}; try again later")
    return ApiError(500, "internal_error", "internal server error; search the server's log for the request id")


def release_frames(error: BaseException | None) -> None:
    """Clear the finished frames of an error to break reference cycles that would keep the body in memory."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
