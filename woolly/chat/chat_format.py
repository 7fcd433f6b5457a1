"""Chat format: the prompt, the grammar of the answer, and the parser of the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from woolly.chat.answer_parser import AnswerParser, ThoughtParser
from woolly.chat.channels import ChannelSplitter
from woolly.chat.continuation import Continuation
from woolly.chat.escaping import escape_results, escape_tools
from woolly.chat.media import (
    MediaPlaceholder,
    Modalities,
    check_media,
    find_placeholders,
    has_media,
    insert_placeholders,
    process_media,
)
from woolly.chat.message import fit_ids, name_results
from woolly.chat.reasoning import EFFORTS, ReasoningFormat, ReasoningSplitter
from woolly.chat.reasoning_switches import OFF, ON
from woolly.chat.roles import check_roles, fit_roles
from woolly.chat.system_prefix import SystemPrefix
from woolly.chat.template_format import TemplateFormat, find_template_format
from woolly.chat.tool_results import place_results
from woolly.chat.tools.format import Format
from woolly.chat.tools.markers import marker_ids, markers_of
from woolly.chat.tools.parser import ToolParser
from woolly.chat.tools.prompt import describe_tools, renders_tools
from woolly.errors import RequestError
from woolly.sampling.reasoning_budget import ReasoningMarkers

if TYPE_CHECKING:
    from woolly.chat.request import ChatRequest
    from woolly.chat.tools.tool import ToolChoice
    from woolly.sampling import SamplingParams
    from woolly.templates import ChatTemplate
    from woolly.tokens import Tokenizer

_CHATML_END = "<|im_end|>"


@dataclass(frozen=True)
class ChatFormat:
    """Prompt of a conversation, and the format of its answers."""

    text: str  # the prompt
    params: SamplingParams  # parameters of the request, with the grammar for tools or a schema
    choice: ToolChoice
    format: Format | None  # None: calls are text
    marks: ReasoningFormat | None  # None: the model does not reason
    shown: frozenset[int]  # control tokens to include in the text
    is_reasoning: bool = False  # the answer begins within reasoning
    made_of: Literal["schema", "tools"] | None = None  # part of the request that determines the grammar
    reasoning_markers: ReasoningMarkers | None = None  # markers of reasoning at the start of an answer
    media: tuple[MediaPlaceholder, ...] = ()  # in order, with positions in the text
    header: str = ""  # start of an answer, for models without reasoning
    is_split: bool = True  # False: reasoning and its markers stay in the text
    tokens: tuple[str, ...] = ()  # control tokens of the reasoning markers, which never are text
    beginning: SystemPrefix | None = field(default=None, compare=False, repr=False)

    def shared_length(self) -> int:
        """Return the length of the system prompt and tools in the text, in characters. Renders both again."""
        return 0 if self.beginning is None else self.beginning.length(self.text)

    def parser(self) -> AnswerParser:
        """Return a parser for one of the answers."""
        format, parser, thoughts = self.format, None, None
        if format is not None:
            n_calls = None if self.choice.is_parallel else 1
            parser = ToolParser(format, self.choice.callable, max_calls=n_calls)
            if self.marks is not None and self.is_split and not self.marks.has_channels and not self._is_constrained:
                strict = replace(format, loose=())
                thoughts = ThoughtParser(lambda: ToolParser(strict, self.choice.callable, in_reasoning=True))
        if self.marks is not None and self.marks.has_channels:
            return AnswerParser(ChannelSplitter(is_open=self.is_reasoning, is_split=self.is_split), parser)
        marks = ReasoningFormat("", "", answer=self.header) if self.header else self.marks
        shown = self.text[self.text.rfind(marks.start) :] if marks is not None and self.is_reasoning else ""
        splitter = ReasoningSplitter(
            marks, is_open=self.is_reasoning, is_split=self.is_split, shown=shown, tokens=self.tokens
        )
        opened = "" if format is None else format.opened
        return AnswerParser(splitter, parser, opened, thoughts)

    @property
    def _is_constrained(self) -> bool:
        """True if a grammar determines where calls begin."""
        return self.made_of is not None


def format_chat(
    request: ChatRequest, template: ChatTemplate, tokenizer: Tokenizer, modalities: Modalities | None = None
) -> ChatFormat:
    """Render the conversation and determine the format of its answers. Long conversations and images take time.

    Raises TemplateError if the template rejects the conversation, and RequestError if the template or the model does
    not support a feature of the request, such as images.
    """
    choice = request.tools
    is_calling = choice.mode != "none"
    template = template.for_tools if is_calling else template
    source = template.source
    check_roles(request.messages, source)
    known = find_template_format(template, tokenizer)
    request = _with_effort(request, template, known)
    _check_effort(request.reasoning.effort, known)
    request = _opened(request, tokenizer, modalities)  # cheap checks come first
    items = process_media(request.messages, modalities, request.media_cache)
    format = known.calls if is_calling else None
    if format is not None and choice.is_enforced:
        format = replace(format, loose=())
    marks = known.reasoning
    request = _with_marks(_as_budgeted(request, known), template, modalities)
    text, is_reasoning = _render(request, template, tokenizer, known)
    structure = _structure(request, format, known, is_reasoning, tokenizer)
    stops = _stops(request.params, template, tokenizer)
    params = request.params
    if structure or stops != params.stop:  # a copy would be validated again, field by field
        params = replace(params, stop=stops, **structure)
    shown_marks = [] if format is None else markers_of(format)
    is_split = request.reasoning.is_split is not False
    tokens: tuple[str, ...] = ()
    if marks is not None:
        tokens = tuple(mark for mark in marks.tokens if mark not in shown_marks and marker_ids(tokenizer, [mark]))
        shown_marks += marks.tokens
    return ChatFormat(
        text,
        params,
        choice,
        format,
        marks,
        marker_ids(tokenizer, shown_marks),
        is_reasoning,
        None if not structure else "schema" if format is None else "tools",
        None if marks is None else _reasoning_markers(marks, tokenizer, is_open=is_reasoning, may_call=is_calling),
        find_placeholders(text, items, modalities) if items and modalities is not None else (),
        known.header,
        is_split,
        tokens,
        SystemPrefix(request, lambda asked: _render(asked, template, tokenizer, known)[0]),
    )


def _opened(request: ChatRequest, tokenizer: Tokenizer, modalities: Modalities | None) -> ChatRequest:
    """Return the request with its files converted to text and images."""
    if not has_media(request.messages):
        return request
    from woolly.chat.files import open_files  # imported late: few conversations have PDF files or videos

    most, allows = request.pdf_pages, request.allows_remote
    return replace(request, messages=open_files(request.messages, modalities, tokenizer, most, allows_remote=allows))


def render_prompt(
    request: ChatRequest,
    template: ChatTemplate,
    tokenizer: Tokenizer,
    modalities: Modalities | None = None,
    *,
    begins_answer: bool = True,
) -> str:
    """Return the prompt of a conversation. Without `begins_answer`, the prompt ends with the last message.

    Images are not read: the prompt has the template's placeholder for each image. Files are read.
    """
    template = template.for_tools if request.tools.mode != "none" else template
    known = find_template_format(template, tokenizer)
    request = _with_effort(request, template, known)
    _check_effort(request.reasoning.effort, known)
    request = _opened(request, tokenizer, modalities)
    check_media(request.messages, modalities)
    asked = _with_marks(_as_budgeted(request, known), template, modalities)
    return _render(asked, template, tokenizer, known, begins_answer=begins_answer)[0]


def _render(
    request: ChatRequest,
    template: ChatTemplate,
    tokenizer: Tokenizer,
    known: TemplateFormat,
    *,
    begins_answer: bool = True,
) -> tuple[str, bool]:
    """Return the prompt, and True if it ends within reasoning."""
    messages = place_results(escape_results(name_results(request.messages), tokenizer))
    if request.tell_schema and (schema := request.shown_schema) is not None:
        from woolly.chat.schema_prompt import add_schema

        messages = add_schema(messages, schema)
    marks, length = known.reasoning, known.calls.id_length
    if length is not None and any(message.calls for message in messages):
        messages = fit_ids(messages, length)
    tools = escape_tools(request.tools.tools, tokenizer) if request.tools.mode != "none" else ()
    shown: list[Mapping[str, Any]] | None = None
    if renders_tools(template.source):
        shown = [known.tool_to_template(tool) for tool in tools] or None
    else:
        messages = describe_tools(messages, tools, known.calls.example)
    messages = fit_roles(messages, template)
    given = {"tools": shown, "documents": request.documents, **_variables(request, known)}
    if request.continue_final:
        continuation = Continuation.of(messages, marks)
        plain = [known.to_template(message) for message in continuation.messages]
        shown_turns = template.render(plain, add_generation_prompt=False, **given)
        if marks is not None and continuation.is_reasoning and not continuation.is_in(shown_turns):
            # The template drops reasoning of past answers.
            begun = template.render(plain[:-1], add_generation_prompt=True, **given)
            return continuation.begin(begun, marks), True
        return continuation.cut(shown_turns), continuation.is_reasoning
    text = template.render(
        [known.to_template(message) for message in messages], add_generation_prompt=begins_answer, **given
    )
    if marks is None or not begins_answer:
        return text, False
    is_off = request.reasoning.effort == OFF and not marks.has_channels  # in channels, a budget of 0 ends reasoning
    if is_off and (known.switch is None or known.switch.name not in request.variables):
        if marks.is_open(text):
            return text + marks.end, False
        if known.switch is None and (known.effort is None or known.effort.off is None):
            return text + marks.start + marks.end, False
    return text, marks.is_open(text)


def _with_marks(request: ChatRequest, template: ChatTemplate, modalities: Modalities | None) -> ChatRequest:
    """Return the request with the images in the form that the template expects."""
    if modalities is None or not has_media(request.messages):
        return request
    return replace(request, messages=tuple(insert_placeholders(request.messages, template, modalities)))


def _as_budgeted(request: ChatRequest, known: TemplateFormat) -> ChatRequest:
    """Return the request with the reasoning budget for its effort. A budget of 0 disables reasoning."""
    effort, params, marks = request.reasoning.effort, request.params, known.reasoning
    if marks is None:
        return request
    if effort == OFF and marks.has_channels:
        return replace(request, params=replace(params, reasoning_budget=0))
    if params.reasoning_budget is None and effort in EFFORTS and known.effort is None:
        return replace(request, params=replace(params, reasoning_budget=EFFORTS[effort]))
    if params.reasoning_budget == 0 and effort is None:
        return replace(request, reasoning=replace(request.reasoning, effort=OFF))
    return request


def _reasoning_markers(
    marks: ReasoningFormat, tokenizer: Tokenizer, *, is_open: bool, may_call: bool
) -> ReasoningMarkers:
    after, answer = (marks.again, marks.answer) if marks.has_channels else ("", "")
    shown = tuple(sorted(marker_ids(tokenizer, marks.tokens)))
    return ReasoningMarkers(marks.start, marks.end, after, answer, shown, is_open, may_call)


def _structure(
    request: ChatRequest, format: Format | None, known: TemplateFormat, is_open: bool, tokenizer: Tokenizer
) -> dict[str, Any]:
    """Return the grammar required by tools or a schema, as a field of SamplingParams."""
    choice, schema, marks, header = request.tools, request.schema, known.reasoning, known.header
    if schema is None and (format is None or not choice.is_enforced):
        return {}
    from woolly.chat.tools.grammar import answer_grammar, call_grammar  # most answers have no grammar

    # A grammar includes the reasoning, even if the reasoning is not split from the answer.
    if format is not None and (choice.is_enforced or schema is not None):
        return {
            "lark": call_grammar(choice, format, tokenizer, marks=marks, is_open=is_open, answer=schema, header=header)
        }
    assert schema is not None
    if marks is None and not header:
        return {"json_schema": schema}
    return {"lark": answer_grammar(schema, tokenizer, marks=marks, is_open=is_open, header=header)}


def _with_effort(request: ChatRequest, template: ChatTemplate, known: TemplateFormat) -> ChatRequest:
    """Return the request with an effort for enable_thinking, which many clients send to every model.

    Templates without reasoning cannot begin it, so they need no value that switches it off.
    """
    wanted, effort = request.variables.get("enable_thinking"), request.reasoning.effort
    if not isinstance(wanted, bool) or template.reads("enable_thinking"):
        return request
    if known.reasoning is None and wanted:
        return request
    variables = {name: value for name, value in request.variables.items() if name != "enable_thinking"}
    if known.reasoning is not None and effort is None:
        effort = ON if wanted else OFF
    return replace(request, variables=variables, reasoning=replace(request.reasoning, effort=effort))


def _variables(request: ChatRequest, known: TemplateFormat) -> dict[str, Any]:
    """Return the template variables of the request, including those for the effort and the budget of the reasoning."""
    variables, effort, budget = dict(request.variables), request.reasoning.effort, request.params.reasoning_budget
    switch, levels = known.switch, known.effort
    if switch is not None and switch.takes_budget and budget is not None and budget > 0 and effort != OFF:
        variables.setdefault(switch.name, budget)
    if effort is None:
        return variables
    value = None if switch is None else switch.off if effort == OFF else switch.on
    if switch is not None and value is not None:
        variables.setdefault(switch.name, value)
    if levels is None:
        return variables
    if effort == OFF:
        if switch is None and levels.off is not None:
            variables.setdefault(levels.name, levels.off)
        elif known.reasoning is not None and known.reasoning.has_channels:
            variables.setdefault(levels.name, levels.level("minimal"))
    elif effort != ON:
        variables.setdefault(levels.name, levels.level(effort))
    elif levels.off is not None and switch is None:
        variables.setdefault(levels.name, levels.level("medium"))  # without an effort, Hy3 does not reason
    return variables


def _check_effort(effort: str | None, known: TemplateFormat) -> None:
    """Raise RequestError if neither the template, nor empty reasoning, nor a budget can implement the effort."""
    if effort in (None, OFF) or known.effort is not None:
        return
    if effort not in (ON, *EFFORTS) or (known.reasoning is None and known.switch is None):
        raise RequestError(
            "reasoning_effort: the model's chat template has no such switch; leave it out", field="reasoning_effort"
        )


def _stops(params: SamplingParams, template: ChatTemplate, tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return the stop strings. If ChatML replaces a missing template, its end marker may not be a control token."""
    if not template.is_fallback or _CHATML_END in params.stop:
        return params.stop
    is_token = len(tokenizer.encode(_CHATML_END, add_special=False, parse_special=True)) == 1
    return params.stop if is_token else (*params.stop, _CHATML_END)
