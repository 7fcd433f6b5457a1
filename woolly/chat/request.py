"""ChatRequest: a conversation and its options, independent of any API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from woolly.chat.tools.tool import ToolChoice
from woolly.errors import RequestError
from woolly.multimodal import MAX_PAGES
from woolly.sampling import SamplingParams

if TYPE_CHECKING:
    from woolly.chat.media import MediaCache
    from woolly.chat.message import Message


@dataclass(frozen=True)
class ReasoningOptions:
    """Reasoning effort and budget, and whether reasoning is shown."""

    effort: str | None = (
        None  # "none" and "on" switch reasoning; minimal to max, or as in the template; None: the template's default
    )
    is_split: bool | None = None  # False: reasoning and its markers stay in the text; None: the server's default


@dataclass(frozen=True)
class ChatRequest:
    """Conversation to answer, and its options.

    A structure in `params` (a grammar, a regex, ...) constrains the complete answer from its first token. `schema` only
    constrains the text of the answer, which may follow reasoning or be replaced by calls.
    """

    messages: tuple[Message, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    tools: ToolChoice = field(default_factory=ToolChoice)
    schema: Mapping[str, Any] | None = None  # JSON schema of the answer
    reasoning: ReasoningOptions = field(default_factory=ReasoningOptions)
    documents: tuple[Mapping[str, Any], ...] | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)  # additional template variables
    continue_final: bool = False  # the answer continues the last message, an assistant message
    tell_schema: bool = False  # the prompt includes the schema
    pdf_pages: int = MAX_PAGES  # maximum total pages of PDF files
    allows_remote: bool = False  # True if files and videos may be fetched from other servers
    media_cache: MediaCache | None = field(default=None, compare=False, repr=False)  # if it is formatted several times

    def __post_init__(self) -> None:
        if self.continue_final and (self.schema is not None or self.tools.is_enforced):
            what = "a schema" if self.schema is not None else "tools that must be called or are strict"
            raise RequestError(
                f"continue_final: it is given together with {what}, which would begin anew; leave one out",
                field="continue_final",
            )
        if self.tell_schema and self.shown_schema is None:
            raise RequestError("tell_schema: there is no schema; give one, or leave it out", field="tell_schema")
        if self.params.structure is None:
            return
        kind = self.params.structure[0]
        if self.tools.is_enforced:
            raise RequestError(
                f"{kind}: it is given together with tools that must be called or are strict; leave one out", field=kind
            )
        if self.schema is not None:
            raise RequestError(
                f"{kind}: it is given together with a schema of the answer, which can have one structure", field=kind
            )

    @property
    def shown_schema(self) -> Mapping[str, Any] | None:
        """JSON schema to include in the prompt: the schema of the answer's text, or of the complete answer."""
        if self.schema is not None:
            return self.schema
        whole = json.loads(self.params.json_schema) if isinstance(self.params.json_schema, str) else None
        return whole if isinstance(whole, dict) else None
