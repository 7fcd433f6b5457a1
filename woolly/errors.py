"""Every exception that Woolly raises on purpose.

    WoollyError
    ├── GGUFError         a file that is not a sound GGUF file: names the file, the offset, what was expected
    ├── UnsupportedError  sound, but not something that Woolly can do yet: names what and where
    ├── TokenizerError    a vocabulary that cannot be built, or text that cannot be encoded
    ├── TemplateError     a chat template that is broken, hostile, or rejects the conversation
    ├── PlanError         a model file that puts steps together wrongly: names the model's own line
    ├── ModelError        metadata or weights that do not make the model they claim to be
    ├── RequestError      a parameter, prompt or length that cannot be served: names it and its limits
    │   └── KeywordError  an argument whose name is unknown, with the name that is meant; a TypeError as well
    ├── CallbackError     a caller's own processor, sampler or hook that failed: names it; the cause is its __cause__
    ├── StageError        a part of a model in another process that cannot be reached, or is not the right one
    ├── ToolError         a tool of an MCP server that cannot be called: names the server and the reason
    ├── StoreError        a model that cannot be found, fetched or verified
    └── DeviceError       a GPU or its driver that failed: only a new process can use it again

Each message is one sentence for the person who caused it, and says what would be right. Programs read the class and the
attributes (`code`, `field`, `limit`), never the sentence, so that a better wording changes nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

Refusal = TypeVar("Refusal", bound="RequestError")


class WoollyError(Exception):
    """The root: catch this to catch everything that Woolly raises on purpose.

    `code` names the kind of fault if the class alone does not; each class lists its own.
    """

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code

    def advised(self, names: Mapping[str, str]) -> str:
        """The sentence with arguments that it advises (backend='cpu') as the caller types them (--backend cpu)."""

        def typed(it: re.Match[str]) -> str:
            return names.get(it[0]) or (f"{names[it[1]]} {it[2]}" if it[1] in names else it[0])

        return re.sub(r"(\w+)='(\w+)'", typed, str(self))


class GGUFError(WoollyError):
    """A file that is not a sound GGUF file. `code` is "shard" if other files of the model are missing."""


class UnsupportedError(WoollyError):
    """Something sound that Woolly does not support yet."""


class TokenizerError(WoollyError):
    """A vocabulary that cannot be built, or text that cannot be encoded."""


class TemplateError(WoollyError):
    """A chat template that is broken, hostile, or rejects the conversation."""


class PlanError(WoollyError):
    """Steps of a model that do not fit together."""


class ModelError(WoollyError):
    """Metadata or weights that do not make the model they claim to be.

    `code` is "file_changed" if a file became shorter while the model was in use.
    """


class RequestError(WoollyError):
    """A request whose parameters, prompt or length cannot be served.

    `field` names the parameter at fault, `limit` the bound that it exceeds and `given` what exceeds it. `code` is
    "grammar" if a structure cannot be compiled, "grammar_too_slow" if it takes too much time from other requests,
    "wrong_model" if a model is asked for what it was not made for, such as a chat model for vectors, "busy" if files of
    other requests are being read, and "context_length" if the prompt and the answer do not fit into the context
    (without a field if the prompt alone does not). `names` are the parameters that the sentence mentions as Python
    spells them, by default the field.
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
        """The sentence with each parameter under the caller's name for it, such as a flag of the command line."""
        left = {name: names[name] for name in self.names if name in names}  # each is mentioned once
        # Not after a hyphen: that is a flag already.
        return re.sub(r"(?<![-\w])\w+", lambda word: left.pop(word[0], word[0]), self.advised(names))

    def with_message(self, message: str, kind: type[Refusal]) -> Refusal:
        """Return a copy of the error with another class or message."""
        return kind(message, field=self.field, code=self.code, limit=self.limit, given=self.given, names=self.names)


class KeywordError(RequestError, TypeError):
    """An argument whose name is unknown; `field` is that name."""


class CallbackError(WoollyError):
    """A caller's own function that raised, or gave what cannot be used."""


class StageError(WoollyError):
    """A stage of a model that cannot be reached, refuses, or failed.

    `code` is "refused" if to try again would not help: another token, model or version.
    """


class ToolError(WoollyError):
    """A tool of an MCP server that cannot be called, or a server that cannot be started."""


class StoreError(WoollyError):
    """A model that cannot be found, fetched or verified."""


class DeviceError(WoollyError):
    """A GPU or its driver that failed.

    `code` is "no_driver" if there is none, "other_system" if another system has it, "old_driver" if it is too old,
    "lost" if the program cannot run again, "refused" if it can: the driver did not take a call.
    `fault` is the sentence without what its reader may do.
    """

    def __init__(self, message: str, *, code: str | None = None, remedy: str = "") -> None:
        super().__init__(f"{message}; {remedy}" if remedy else message, code=code)
        self.fault = message
