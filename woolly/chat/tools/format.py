"""Formats: how a model writes its calls, recognised by what its chat template contains."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from woolly.chat.tools.labeled_calls import Label
from woolly.chat.tools.tagged_calls import Tags
from woolly.chat.tools.unquoted_json import QUOTE

if TYPE_CHECKING:
    from woolly.tokens import Tokenizer


@dataclass(frozen=True)
class Format:
    """Marks around calls, and how one is laid out between them.

    In every format a JSON object at the very start of an answer is a call if it names a tool that was given, for
    the marks of some vocabularies are control tokens that models leave out.
    """

    name: str
    marks: tuple[tuple[str, str], ...]  # what opens a call or several, and what closes them; the first is written
    signs: tuple[str, ...] = ()  # texts of which a template of this format has all
    token: str = ""  # a control token that only vocabularies of this format have
    # How a call is written: by a label, by tags or as Python; else as an object of JSON.
    label: Label | None = None
    tags: Tags | None = None
    is_python: bool = False
    names: str = "name"  # the keys of an object that the model was trained on
    arguments: str = "arguments"
    is_numbered: bool = False  # an object begins with its number, as "tool_call_id"
    is_keyed: bool = False  # an object has one key, the tool's name, whose value are the arguments
    frame: tuple[str, str, str] = (
        "",
        "",
        "",
    )  # an object's text before the name, between name and arguments, and after
    is_list: bool = False  # calls are in an array
    # Several objects in one pair of marks: what is before, between and after them.
    group: tuple[str, str, str] | None = None
    is_single: bool = False  # one call per answer
    is_bare: bool = False  # calls are written without marks, but marks are accepted
    section: tuple[str, str] = ("", "")  # marks around all calls
    gaps: tuple[str, str] = ("", "")  # written after the mark that opens the section, and before the one that closes it
    text_end: str = ""  # written after a text that calls follow, and before calls without a text
    example: str = ""  # one call, as the template shows it
    between: str = "\n"  # written between two calls
    # Written after the mark that opens a call, and before the one that closes it.
    padding: tuple[str, str] = ("\n", "\n")
    lead: str = ""  # before a call, with the tool's name as {name}: the header of a message to the tool
    opened: str = ""  # what opens a call, where the prompt ends with it
    id_length: int | None = None  # of ids that the template accepts; None: OpenAI's own kind
    loose: tuple[tuple[str, str], ...] = ()  # as marks, but ordinary text has them too: a tool's name decides

    def with_marks(self, other: Format) -> Format:
        """Return the format with the marks of another one, which are accepted and not written."""
        return replace(self, marks=other.marks, loose=other.loose, is_bare=True)


_NO_PADDING = ("", "")
# Small models write their calls as they write other JSON.
FENCES = (("```json", "```"), ("```", "```"))
_NAME = r"(?P<name>[\w.-]+)"
_FUNCTION = Tags(
    ("<function=", ">\n"), ("<parameter=", ">"), ("\n", "\n</parameter>\n"), "</function>", has_lines=True
)  # of Qwen3-Coder, Qwen3.5, Nemotron 3 and Seed-OSS
_INVOKE = Tags(('<invoke name="', '">\n'), ('<parameter name="', '">'), ("", "</parameter>\n"), "</invoke>")
_ARGUMENT = Tags(("", "\n"), ("<arg_key>", "</arg_key>"), ("\n<arg_value>", "</arg_value>\n"), "</tool_call>")
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
        padding=_NO_PADDING,
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
    Format("glm", (("<tool_call>", ""),), ("<arg_key>", "<tool_call>"), tags=_ARGUMENT, padding=_NO_PADDING),
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
        padding=_NO_PADDING,
    ),
    Format(
        "deepseek_short",
        _DEEPSEEK_MARKS,
        ("<｜tool▁calls▁begin｜>",),
        label=_DEEPSEEK_SHORT,
        section=_DEEPSEEK_SECTION,
        between="",
        padding=_NO_PADDING,
    ),
    Format(
        "kimi",
        (("<|tool_call_begin|>", "<|tool_call_end|>"),),
        ("<|tool_calls_section_begin|>",),
        label=_KIMI,
        section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        between="",
        padding=_NO_PADDING,
    ),
    Format(
        "gemma",
        (("<|tool_call>", "<tool_call|>"),),
        ("<|tool_call>",),
        label=_GEMMA,
        between="",
        padding=_NO_PADDING,
    ),
    Format(
        "command",
        (("<|START_ACTION|>", "<|END_ACTION|>"),),
        ("<|START_ACTION|>",),
        names="tool_name",
        arguments="parameters",
        is_numbered=True,
        is_list=True,
        padding=_NO_PADDING,
    ),
    Format(
        "lfm2",
        (("<|tool_call_start|>", "<|tool_call_end|>"),),
        ("<|tool_call_start|>",),
        token="<|tool_call_start|>",
        is_python=True,
        is_list=True,
        padding=_NO_PADDING,
    ),
    Format("nemotron", (("<TOOLCALL>", "</TOOLCALL>"),), ("<TOOLCALL>",), is_list=True, padding=_NO_PADDING),
    Format("granite", (("<|tool_call|>", ""), *_HERMES_MARKS), ("<|tool_call|>",), is_list=True, padding=_NO_PADDING),
    Format(
        "mistral_named",
        (("[TOOL_CALLS]", ""),),
        ("[TOOL_CALLS]", "[ARGS]"),
        label=_MISTRAL,
        between="",
        padding=_NO_PADDING,
        id_length=9,
    ),
    Format("mistral", (("[TOOL_CALLS]", ""),), ("[TOOL_CALLS]",), is_list=True, padding=_NO_PADDING, id_length=9),
    Format("hermes", _HERMES_MARKS, ("<tool_call>",), loose=FENCES),
    Format(
        "llama3",
        (("<|python_tag|>", ""),),
        ("<|python_tag|>",),
        arguments="parameters",
        is_single=True,
        is_bare=True,
        padding=_NO_PADDING,
    ),
    # For templates without tools, or without the shape of a call: accepts whatever is common.
    Format("generic", _HERMES_MARKS, loose=FENCES, is_bare=True, padding=_NO_PADDING),
)

FORMATS: dict[str, Format] = {format.name: format for format in _ROWS}


def find_format(template: str, tokenizer: Tokenizer | None = None) -> Format:
    """Return the row whose signs a chat template's source contains, or whose markers are control tokens."""
    found = next(format for format in _ROWS if all(sign in template for sign in format.signs))
    if found.signs:
        return found
    if "<|start_header_id|>" in template and re.search(r"[\"']parameters\\?[\"']", template):
        return FORMATS["llama3"]
    if tokenizer is not None:
        from woolly.chat.tools.markers import marker_ids

        by_token = (format for format in _ROWS if format.token and marker_ids(tokenizer, [format.token]))
        return next(by_token, found)
    return found
