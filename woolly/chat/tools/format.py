"""Formats: how a model writes its calls, recognised by what its chat template contains."""

from __future__ import annotations

import re
from dataclasses import dataclass

from woolly.chat.tools.labeled_calls import Label
from woolly.chat.tools.tagged_calls import Tags
from woolly.chat.tools.unquoted_json import QUOTE


@dataclass(frozen=True)
class Format:
    """Marks around calls, and how one is laid out between them.

    In every format a JSON object at the very start of an answer is a call if it names a tool that was given, for
    the marks of some vocabularies are control tokens that models leave out.
    """

    name: str
    marks: tuple[tuple[str, str], ...]  # what opens a call or several, and what closes them; the first is written
    signs: tuple[str, ...] = ()  # texts of which a template of this format has all
    # How a call is written: by a label, by tags or as Python; else as an object of JSON.
    label: Label | None = None
    tags: Tags | None = None
    is_python: bool = False
    names: str = "name"  # the keys of an object that the model was trained on
    arguments: str = "arguments"
    is_numbered: bool = False  # an object begins with its number, as "tool_call_id"
    is_list: bool = False  # calls are in an array
    is_single: bool = False  # one call per answer
    is_bare: bool = False  # calls are written without marks, but marks are accepted
    section: tuple[str, str] = ("", "")  # marks around all calls
    between: str = "\n"  # written between two calls
    padding: str = "\n"  # written after the mark that opens a call, and before the one that closes it
    id_length: int | None = None  # of ids that the template accepts; None: OpenAI's own kind
    loose: tuple[tuple[str, str], ...] = ()  # as marks, but ordinary text has them too: a tool's name decides


# Small models write their calls as they write other JSON.
_FENCES = (("```json", "```"), ("```", "```"))
_NAME = r"(?P<name>[\w.-]+)"
_FUNCTION = Tags(
    ("<function=", ">"), ("<parameter=", ">"), ("", "</parameter>"), "</function>", has_lines=True
)  # of Qwen3-Coder, Qwen3.5, Nemotron 3 and Seed-OSS
_INVOKE = Tags(('<invoke name="', '">'), ('<parameter name="', '">'), ("", "</parameter>"), "</invoke>")
_ARGUMENT = Tags(("", ""), ("<arg_key>", "</arg_key>"), ("<arg_value>", "</arg_value>"), "</tool_call>")
_MISTRAL = Label(
    rf"\s*{_NAME}\s*(?:\[CALL_ID\]\s*(?P<id>\w+)\s*)?(?:\[ARGS\]\s*)?", after="[ARGS]", marks=("[ARGS]", "[CALL_ID]")
)
_DEEPSEEK_SEPARATOR = "<｜tool▁sep｜>"
_DEEPSEEK = Label(
    rf"\s*function\s*{_DEEPSEEK_SEPARATOR}\s*{_NAME}\s*(?:```json\s*)?",
    before=f"function{_DEEPSEEK_SEPARATOR}",
    after="\n```json\n",
    end="\n```",
    marks=(_DEEPSEEK_SEPARATOR,),
)
_DEEPSEEK_SHORT = Label(
    rf"\s*{_NAME}\s*{_DEEPSEEK_SEPARATOR}\s*", after=_DEEPSEEK_SEPARATOR, marks=(_DEEPSEEK_SEPARATOR,)
)
_DEEPSEEK_MARKS = (("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),)
_DEEPSEEK_SECTION = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_KIMI = Label(
    r"\s*(?P<id>(?:functions\.)?(?P<name>[\w.-]+)(?::\d+)?)\s*<\|tool_call_argument_begin\|>\s*",
    before="functions.",
    after=":{n}<|tool_call_argument_begin|>",
    marks=("<|tool_call_argument_begin|>",),
)
_HARMONY = Label(
    rf"{_NAME}\s*(?:<\|constrain\|>)?\s*(?:json)?\s*<\|message\|>\s*",
    after=" <|constrain|>json<|message|>",
    marks=("<|channel|>", "<|constrain|>", "<|message|>"),
)
_GEMMA = Label(rf"\s*call:\s*{_NAME}\s*", before="call:", marks=(QUOTE,), is_bare=True)
_HERMES_MARKS = (("<tool_call>", "</tool_call>"),)

# In the order in which their signs are looked for.
_ROWS = (
    Format(
        "harmony",
        (("<|channel|>commentary to=functions.", "<|call|>"),),
        ("<|channel|>", "<|message|>"),
        label=_HARMONY,
        is_single=True,
        padding="",
    ),
    Format(
        "seed",
        (("<seed:tool_call>", "</seed:tool_call>"), ("<function=", "</seed:tool_call>")),
        ("<seed:tool_call>",),
        tags=_FUNCTION,
    ),
    Format(
        "minimax",
        (("<minimax:tool_call>", "</minimax:tool_call>"), ('<invoke name="', "</minimax:tool_call>")),
        ("<minimax:tool_call>",),
        tags=_INVOKE,
    ),
    Format("glm", (("<tool_call>", ""),), ("<arg_key>", "<tool_call>"), tags=_ARGUMENT, padding=""),
    Format(
        "qwen_xml",
        (*_HERMES_MARKS, ("<function=", "</tool_call>")),
        ("<function=", "<parameter="),
        tags=_FUNCTION,
    ),
    Format(
        "deepseek",
        _DEEPSEEK_MARKS,
        ("<｜tool▁calls▁begin｜>", "```json"),
        label=_DEEPSEEK,
        section=_DEEPSEEK_SECTION,
        padding="",
    ),
    Format(
        "deepseek_short",
        _DEEPSEEK_MARKS,
        ("<｜tool▁calls▁begin｜>",),
        label=_DEEPSEEK_SHORT,
        section=_DEEPSEEK_SECTION,
        between="",
        padding="",
    ),
    Format(
        "kimi",
        (("<|tool_call_begin|>", "<|tool_call_end|>"),),
        ("<|tool_calls_section_begin|>",),
        label=_KIMI,
        section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        between="",
        padding="",
    ),
    Format(
        "gemma",
        (("<|tool_call>", "<tool_call|>"),),
        ("<|tool_call>",),
        label=_GEMMA,
        between="",
        padding="",
    ),
    Format(
        "command",
        (("<|START_ACTION|>", "<|END_ACTION|>"),),
        ("<|START_ACTION|>",),
        names="tool_name",
        arguments="parameters",
        is_numbered=True,
        is_list=True,
        padding="",
    ),
    Format(
        "lfm2",
        (("<|tool_call_start|>", "<|tool_call_end|>"),),
        ("<|tool_call_start|>",),
        is_python=True,
        is_list=True,
        padding="",
    ),
    Format("nemotron", (("<TOOLCALL>", "</TOOLCALL>"),), ("<TOOLCALL>",), is_list=True, padding=""),
    Format("granite", (("<|tool_call|>", ""), *_HERMES_MARKS), ("<|tool_call|>",), is_list=True, padding=""),
    Format(
        "mistral_named",
        (("[TOOL_CALLS]", ""),),
        ("[TOOL_CALLS]", "[ARGS]"),
        label=_MISTRAL,
        between="",
        padding="",
        id_length=9,
    ),
    Format("mistral", (("[TOOL_CALLS]", ""),), ("[TOOL_CALLS]",), is_list=True, padding="", id_length=9),
    Format("hermes", _HERMES_MARKS, ("<tool_call>",), loose=_FENCES),
    Format(
        "llama3",
        (("<|python_tag|>", ""),),
        ("<|python_tag|>",),
        arguments="parameters",
        is_single=True,
        is_bare=True,
        padding="",
    ),
    # For templates without tools, or without the shape of a call: accepts whatever is common.
    Format("generic", _HERMES_MARKS, loose=_FENCES, is_bare=True, padding=""),
)

FORMATS: dict[str, Format] = {format.name: format for format in _ROWS}


def find_format(template: str) -> Format:
    """Returns the format that a chat template's source contains."""
    found = next(format for format in _ROWS if all(sign in template for sign in format.signs))
    if not found.signs and "<|start_header_id|>" in template and re.search(r"[\"']parameters\\?[\"']", template):
        return FORMATS["llama3"]
    return found
