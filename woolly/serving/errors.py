"""ApiError: what a client is told when something is wrong, in the words of the dialect that it speaks."""

from __future__ import annotations

from typing import Any

from woolly.errors import RequestError, TemplateError, TokenizerError, UnsupportedError, WoollyError

__all__ = ["ApiError", "answer_cancelled", "error_body", "of_exception"]

# OpenAI's `type` by status; others are its invalid_request_error below 500 and server_error from there on.
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "unavailable_error",
}

_MAX_MESSAGE = 1000  # characters


class ApiError(WoollyError):
    """An error with a status; raised anywhere below a route, told to the client by app.py.

    `code` is a word for programs, `message` one sentence for people that says what would be right, `param` the field
    that was wrong, `suggestion` what to do next, `retry_after` seconds until it may be tried again.
    """

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
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.suggestion = suggestion
        self.retry_after = retry_after
        self.details = details

    @property
    def headers(self) -> dict[str, str]:
        """Headers that the status asks for."""
        headers = {}
        if self.retry_after is not None:
            headers["Retry-After"] = str(max(1, round(self.retry_after)))
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return headers


def answer_cancelled() -> ApiError:
    """What is told where a model is freed under a request."""
    return ApiError(503, "answer_cancelled", "the server stopped or unloaded the model before the end", retry_after=5)


def error_body(error: ApiError, path: str) -> dict[str, Any]:
    """The JSON of an error: Ole's shape below /api/v1, OpenAI's elsewhere."""
    message = _short(error.message)
    if path.startswith("/api/v1"):
        return {
            "error": {
                "code": error.code,
                "message": message,
                "suggestion": error.suggestion,
                "details": error.details,
            }
        }
    kind = _TYPES.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    if error.suggestion is not None:
        message = f"{message}; {error.suggestion}"
    return {"error": {"message": message, "type": kind, "param": error.param, "code": error.code}}


def _short(text: str) -> str:
    """What a client sent and is quoted may be long, or hold what UTF-8 cannot."""
    text = text if len(text) <= _MAX_MESSAGE else f"{text[:_MAX_MESSAGE]}..."
    return text.encode("utf-8", "replace").decode()


def of_exception(error: BaseException) -> ApiError:
    """What a client may know of an exception: the sentence of a refusal, nothing of a fault of our own."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, (RequestError, TemplateError, TokenizerError, UnsupportedError)):
        return ApiError(400, "invalid_request", str(error))
    return ApiError(
        500, "internal_error", "the server failed at this request; the log has the reason under its request id"
    )
