"""Exceptions that Woolly raises deliberately.

    WoollyError
    ├── GGUFError         invalid GGUF file: names the file, the offset and the expected value
    ├── UnsupportedError  valid input that Woolly does not support yet
    ├── TokenizerError    vocabulary that cannot be loaded, or text that cannot be encoded
    ├── TemplateError     chat template that is invalid or malicious, or rejects the conversation
    ├── PlanError         model steps that do not fit together: names the line of the model file
    ├── ModelError        metadata or weights that are inconsistent with the architecture
    ├── RequestError      invalid parameter, prompt or length: names the parameter and its limits
    │   └── KeywordError  unknown argument, with the closest known name; also a TypeError
    ├── CallbackError     user callback (processor, sampler, hook) that failed; the cause is `__cause__`
    ├── StageError        model stage in another process that is unreachable or does not match
    ├── ToolError         MCP tool that cannot be called: names the server and the reason
    ├── StoreError        model that cannot be found, downloaded or verified
    └── DeviceError       GPU or driver failure: only a new process can use the GPU again

Each message is one sentence that says what is wrong and what to do. Programs should use the class and the attributes
(`code`, `field`, `limit`), because messages may change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

Refusal = TypeVar("Refusal", bound="RequestError")


class WoollyError(Exception):
    """Base class of all exceptions that Woolly raises deliberately.

    `code` is a machine-readable error code, as listed in the subclasses.
    """

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows: the lines of the user's code and the message, without Woolly's own lines."""
        import traceback  # takes 5 ms, and is rarely needed

        own, frames = __file__.removesuffix("errors.py"), traceback.extract_tb(self.__traceback__)
        outside = [one for one in frames if not one.filename.startswith(own) and "/IPython/" not in one.filename]
        return [*traceback.format_list(outside), f"{type(self).__name__}: {self}"]

    def advised(self, names: Mapping[str, str]) -> str:
        """Return the message with suggested arguments (backend='cpu') in the caller's syntax (--backend cpu)."""

        def typed(it: re.Match[str]) -> str:
            return names.get(it[0]) or (f"{names[it[1]]} {it[2]}" if it[1] in names else it[0])

        return re.sub(r"(\w+)='(\w+)'", typed, str(self))


class GGUFError(WoollyError):
    """Invalid GGUF file. `code` is "shard" if other files of the model are missing."""


class UnsupportedError(WoollyError):
    """Valid input that Woolly does not support yet."""


class TokenizerError(WoollyError):
    """Vocabulary that cannot be loaded, or text that cannot be encoded."""


class TemplateError(WoollyError):
    """Chat template that is invalid or malicious, or that rejects the conversation."""


class PlanError(WoollyError):
    """Model steps that do not fit together."""


class ModelError(WoollyError):
    """Metadata or weights that are inconsistent with the model architecture.

    `code` is "file_changed" if a file became shorter while the model was in use.
    """


class RequestError(WoollyError):
    """Invalid request: its parameters, prompt or length cannot be served.

    `field` is the invalid parameter, `limit` the exceeded bound and `given` the value that exceeds it. `code` is
    "grammar" if a structure cannot be compiled, "grammar_too_slow" if it takes too much time from other requests,
    "wrong_model" if the model does not support the call (such as embeddings of a chat model), "busy" while files of
    other requests are decoded, and "context_length" if prompt and answer do not fit the context (without a field if the
    prompt alone does not fit). `names` has the Python names of the parameters in the message, by default only `field`.
    """

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        code: str | None = None,
        limit: float | None = None,
        given: float | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(message, code=code)
        self.field = field
        self.limit = limit
        self.given = given
        self.names = tuple(names) if names is not None else () if field is None else (field,)

    def worded(self, names: Mapping[str, str]) -> str:
        """Return the message with the caller's parameter names, such as command line flags."""
        left = {name: names[name] for name in self.names if name in names}  # each parameter occurs once
        # A word after a hyphen is already a flag.
        return re.sub(r"(?<![-\w])\w+", lambda word: left.pop(word[0], word[0]), self.advised(names))

    def with_message(self, message: str, kind: type[Refusal]) -> Refusal:
        """Return a copy of the error with another class or message."""
        return kind(message, field=self.field, code=self.code, limit=self.limit, given=self.given, names=self.names)


class KeywordError(RequestError, TypeError):
    """Unknown argument; `field` is its name."""


class CallbackError(WoollyError):
    """User callback that raised an exception or returned an invalid value."""

    def _render_traceback_(self) -> list[str]:
        import traceback

        cause = self.__cause__
        first = [] if cause is None else traceback.format_exception(cause)
        return [*first, *super()._render_traceback_()]


class StageError(WoollyError):
    """Model stage that is unreachable, rejected the connection, or failed.

    `code` is "refused" if the token, the model or the version differs, so that retrying does not help.
    """


class ToolError(WoollyError):
    """MCP tool that cannot be called, or MCP server that cannot be started."""


class StoreError(WoollyError):
    """Model that cannot be found, downloaded or verified."""


class DeviceError(WoollyError):
    """GPU or driver failure.

    `code` is "no_driver" if there is no driver, "other_system" if another operating system has it, "old_driver" if it
    is too old, "lost" if the program cannot run again, and "refused" if the driver rejected a call but the program can
    run again. `fault` is the message without the remedy.
    """

    def __init__(self, message: str, *, code: str | None = None, remedy: str = "") -> None:
        super().__init__(f"{message}; {remedy}" if remedy else message, code=code)
        self.fault = message
