"""Formats: how a model writes its calls, told by what its chat template contains."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["FORMATS", "Format", "find_format"]


@dataclass(frozen=True)
class Format:
    """Marks around calls, and how one is laid out between them.

    In every format a JSON object at the very start of an answer is a call where it names a tool that was given, for
    the marks of some vocabularies are control tokens that models leave out.
    """

    name: str
    marks: tuple[tuple[str, str], ...]  # what opens a call or several, and what closes them; the first is written
    arguments: str = "arguments"  # the key that the model was trained on
    is_list: bool = False  # calls stand in a JSON array
    is_named: bool = False  # name[ARGS]{...} instead of an object
    is_single: bool = False  # one call per answer
    is_bare: bool = False  # calls are written without marks, though those are understood
    id_length: int | None = None  # of ids that the template accepts; None: OpenAI's own kind
    loose: tuple[tuple[str, str], ...] = ()  # as marks; where ordinary text has them too, so that a tool's name decides


# Small models write their calls as they write other JSON.
_FENCES = (("```json", "```"), ("```", "```"))

_HERMES = Format("hermes", (("<tool_call>", "</tool_call>"),), loose=_FENCES)
_LLAMA3 = Format("llama3", (("<|python_tag|>", ""),), arguments="parameters", is_single=True, is_bare=True)
_MISTRAL = Format("mistral", (("[TOOL_CALLS]", ""),), is_list=True, id_length=9)
_MISTRAL_NAMED = Format("mistral_named", (("[TOOL_CALLS]", ""),), is_named=True, id_length=9)
_GRANITE = Format("granite", (("<|tool_call|>", ""), ("<tool_call>", "</tool_call>")), is_list=True)
# For templates that know nothing of tools, or nothing of how a call looks: whatever is common is understood.
_GENERIC = Format("generic", (("<tool_call>", "</tool_call>"),), loose=_FENCES, is_bare=True)

FORMATS: dict[str, Format] = {
    format.name: format for format in (_HERMES, _LLAMA3, _MISTRAL, _MISTRAL_NAMED, _GRANITE, _GENERIC)
}


def find_format(template: str) -> Format:
    """The format that a chat template's source shows."""
    if "<|tool_call|>" in template:
        return _GRANITE
    if "[TOOL_CALLS]" in template:
        return _MISTRAL_NAMED if "[ARGS]" in template else _MISTRAL
    if "<tool_call>" in template:
        return _HERMES
    if "<|python_tag|>" in template or (
        "<|start_header_id|>" in template and re.search(r"[\"']parameters\\?[\"']", template)
    ):
        return _LLAMA3
    return _GENERIC
