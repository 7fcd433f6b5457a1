"""Checks of a chat template: the answers that it shows are read back, forced, cut off and malformed."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np

from tests.cases.grammars import may_end, walk
from tests.cases.templates import QUOTED, RICH, TEXT, THOUGHT, TOOLS, USAGE, TemplateModel, call
from tests.cases.tiny import byte_vocabulary
from woolly.chat import ChatRequest, Message, ToolChoice, format_chat, gather
from woolly.chat.template_format import find_template_format
from woolly.grammar import GrammarCompiler
from woolly.tokens import Tokenizer

YES, NO, NOT_SHOWN = "yes", "no", "not shown"

# Templates that show no calls, with calls that the model writes.
WRITTEN = {
    "LFM2-8B-A1B": "<|tool_call_start|>[%s]<|tool_call_end|>",
    "LFM2.5-Instruct": "<|tool_call_start|>[%s]<|tool_call_end|>",
    "ibm-granite-granite-3.3-2B-Instruct": "<|tool_call|>[%s]",
}
# Models that write calls in another form than their template, or whose grammar has plain JSON in place of it.
OTHERWISE = (
    "openai-gpt-oss-120b",
    "google-gemma-4-31B-it",
    "google-gemma-4-31B-it-interleaved",
    "CohereForAI-c4ai-command-r-plus-tool_use",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",  # shows one call without the end of the section
)
EMPTY = {"city": "", "tags": [], "place": {}}
NUMBERS = {"city": "42", "code": "1e5", "note": "[1, 2]"}
NESTED = {"city": "a", "place": {"name": "x", "deep": {"list": [1, {"y": 5}], "more": "z"}}, "tags": ["[", "{"]}
UNICODE = {"city": "Zürich 東京 🐑", "note": "a\u00a0b\u200dc"}
LINES = {"city": "\n", "note": "\n a\r\n\tb\n\n", "code": "if a:\n    b\n"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


def tokenizer_for(name: str) -> Tokenizer:
    """Return a vocabulary of bytes, with the markers of LFM2, which its templates do not show."""
    vocabulary = byte_vocabulary()
    marks = ["<|tool_call_start|>", "<|tool_call_end|>"] if name.startswith("LFM2") else []
    vocabulary["tokenizer.ggml.tokens"] = [*vocabulary["tokenizer.ggml.tokens"], *marks]
    types = [*vocabulary["tokenizer.ggml.token_type"], *[3] * len(marks)]
    return Tokenizer.from_metadata(vocabulary | {"tokenizer.ggml.token_type": np.asarray(types, np.int32)})


class Checks:
    """Results of all checks of a template, each YES, NO or NOT_SHOWN, by column of the reference page."""

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.tokenizer = tokenizer_for(name)
        self.model = TemplateModel(source, self.tokenizer)
        self.faults: dict[str, str] = {}

    def run(self) -> dict[str, str]:
        """Return the results."""
        found = {}
        for column, check in COLUMNS.items():
            try:
                found[column] = check(self)
            except Exception as error:  # an error is a result of the table
                self.faults[column] = repr(error)
                found[column] = NO
        return found

    def answer(self, *calls: tuple[str, dict], text: str = "", reasoning: str | None = None) -> str | None:
        """Return an answer as the model writes it, or None if the template leaves a part out."""
        message = Message(
            "assistant", text, calls=tuple(call(i, *c) for i, c in enumerate(calls, 1)), reasoning=reasoning
        )
        if calls and self.name in WRITTEN:
            if reasoning or text:
                return None
            return WRITTEN[self.name] % ", ".join(_written(self.name, *c) for c in calls)
        return self.model.shown(message)

    def reads(self, column: str, *calls: tuple[str, dict], text: str = "", reasoning: str | None = None) -> str:
        """Return YES if an answer is read back, whole and character by character."""
        answer = self.answer(*calls, text=text, reasoning=reasoning)
        if answer is None:
            return NOT_SHOWN
        read = self.model.read(answer)
        if text and read.reasoning == text and not read.text:
            return NOT_SHOWN  # gpt-oss: text before a call is reasoning
        if (read.text.strip(), read.reasoning, read.calls, read.is_streamed) == (text, reasoning or "", [*calls], True):
            return YES
        self.faults[column] = f"{answer!r} is read as {read}"
        return NO

    def arguments(self, column: str, *values: dict) -> str:
        """Return YES if calls with each of these arguments are read back."""
        results = [self.reads(column, ("weather", each)) for each in values]
        return NO if NO in results else results[0]

    def allowed(self, layout, answer: str) -> bool:
        """Return True if the grammar of a prompt accepts an answer."""
        marks = layout.marks
        if marks is not None and not layout.is_reasoning:
            answer = answer.removeprefix(marks.end)
        matcher = GrammarCompiler(self.tokenizer).compile("lark", layout.params.lark).start()
        tokens = self.tokenizer.encode(answer.strip(), add_special=False)
        if matcher._matcher.validate_tokens(tokens) < len(tokens):
            return False
        matcher._matcher.consume_tokens(tokens)
        return may_end(matcher)

    def walked(self, layout, choice: str | None) -> bool:
        """Return True if random answers that a grammar allows are read as calls of the chosen tool."""
        names = ("weather", "clock") if choice in ("required", "auto") else (choice,)
        grammar = GrammarCompiler(self.tokenizer).compile("lark", layout.params.lark)
        for seed in range(3):
            answer = walk(self.tokenizer, grammar, seed, 900)
            if answer is not None:
                parser = layout.parser()
                read = gather([*parser.push(answer), *parser.finish("stop", USAGE)])
                if choice != "auto" and not (read.tool_calls and read.tool_calls[0].name in names):
                    return False
        return True

    def forced(self, column: str, choice: str | None, *, schema: dict | None = None) -> str:
        """Return YES if a grammar accepts a call as the template shows it."""
        answer = self.answer(("weather", {"city": "Rome", "count": 3}))
        if answer is None:
            return NOT_SHOWN
        request = ChatRequest((Message("user", "Rain in Rome?"),), tools=ToolChoice.of(TOOLS, choice), schema=schema)
        layout = format_chat(request, self.model.template, self.tokenizer)
        is_right = self.walked(layout, choice) if self.name in OTHERWISE else self.allowed(layout, answer)
        if choice == "clock" and self.name not in OTHERWISE:
            is_right = not is_right
        if schema is not None:
            said = self.answer(text='{"a": 1}')
            is_right = is_right and said is not None and self.allowed(layout, said)
        if not is_right:
            self.faults[column] = f"{answer!r} with {layout.params.lark}"
        return YES if is_right else NO


def _written(name: str, tool: str, arguments: dict) -> str:
    if name.startswith("LFM2"):
        return f"{tool}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
    return json.dumps({"name": tool, "arguments": arguments}, ensure_ascii=False)


ROME = ("weather", {"city": "Rome", "count": 3})


def _renders(checks: Checks) -> str:
    turns = (
        Message("assistant", None, calls=(call(1, *ROME),), reasoning=THOUGHT),
        Message("tool", "rain", call_id="abcdefgh1"),
        Message("assistant", "It rains."),
        Message("user", "Thanks"),
    )
    text = checks.model.layout(*turns).text
    return YES if 0 <= text.find("rain") < text.find("It rains.") < text.rfind("Thanks") else NO


def _two(checks: Checks) -> str:
    return NOT_SHOWN if checks.model.format.calls.is_single else checks.reads("two", ROME, ("clock", {}))


def _markers(checks: Checks) -> str:
    """Read arguments that contain the markers of calls, of arguments and of reasoning."""
    known = checks.model.format
    texts = [text.strip() for pair in (*known.calls.marks, known.calls.section) for text in pair]
    if known.calls.tags is not None:
        texts += [known.calls.tags.end.strip(), known.calls.tags.value[1].strip().replace("{key}", "city")]
    if known.reasoning is not None:
        texts += [known.reasoning.start, known.reasoning.end]
    values = [{"city": f"a {text} b", "note": f"{text}x"} for text in dict.fromkeys(texts) if text]
    return (
        checks.arguments("markers", *values) if values else checks.arguments("markers", {"city": '{"name": "clock"}'})
    )


def _none(checks: Checks) -> str:
    """Read a call as text if calls are not allowed."""
    answer = checks.answer(ROME)
    if answer is None:
        return NOT_SHOWN
    tools = ToolChoice.of(TOOLS, "none")
    read = checks.model.read(answer, tools)
    return NO if read.calls or "Rome" not in read.text + read.reasoning else YES


def _interrupted(checks: Checks) -> str:
    """Cut a call off at each character: the characters are text, or arguments of a call."""
    answer = checks.answer(ROME)
    if answer is None:
        return NOT_SHOWN
    for n in range(1, len(answer)):
        read = checks.model.read(answer[:n])
        shown = read.text + read.reasoning + "".join(map(str, read.calls))
        words = ("Rome",) if read.calls else ("weather", "Rome")
        lost = [word for word in words if word in answer[:n] and word not in shown]
        if lost or not read.is_streamed:
            checks.faults["interrupted"] = f"{answer[:n]!r} is read as {read}"
            return NO
    return YES


def _malformed(checks: Checks) -> str:
    """Leave out one character each: the words stay, as text or in a call."""
    answer = checks.answer(ROME)
    if answer is None:
        return NOT_SHOWN
    for n in range(len(answer)):
        broken = f"{answer[:n]}{answer[n + 1 :]}\nDone."
        read = checks.model.read(broken)
        shown = read.text + read.reasoning + "".join(map(str, read.calls))
        words = ("Rome", "Done") if read.calls else ("weather", "Rome", "Done")
        lost = [word for word in words if word in broken and word not in shown]
        if lost or not read.is_streamed:
            checks.faults["malformed"] = f"{broken!r} is read as {read}"
            return NO
    return YES


def _reasoning(checks: Checks) -> str:
    found = checks.reads("reasoning", text=TEXT, reasoning=THOUGHT)
    with_call = checks.reads("reasoning", ROME, reasoning=THOUGHT)
    return NO if NO in (found, with_call) else YES if YES in (found, with_call) else NOT_SHOWN


COLUMNS: dict[str, Callable[[Checks], str]] = {
    "rendered": _renders,
    "text": lambda c: c.reads("text", text=TEXT),
    "one call": lambda c: c.reads("one call", ROME),
    "two calls": _two,
    "text and call": lambda c: c.reads("text and call", ROME, text=TEXT),
    "reasoning": _reasoning,
    "values": lambda c: c.arguments("values", RICH, QUOTED, UNICODE, NESTED),
    "empty": lambda c: c.arguments("empty", EMPTY, {"city": "a", "note": ""}),
    "numbers": lambda c: c.arguments("numbers", NUMBERS),
    "lines": lambda c: c.arguments("lines", LINES),
    "markers": _markers,
    "required": lambda c: c.forced("required", "required"),
    "named": lambda c: NO if NO in (c.forced("named", "weather"), c.forced("named", "clock")) else YES,
    "none": _none,
    "schema": lambda c: c.forced("schema", "auto", schema=SCHEMA),
    "interrupted": _interrupted,
    "malformed": _malformed,
}


def format_of(checks: Checks) -> tuple[str, str]:
    """Return how calls and reasoning were found: derived, or the name of a row."""
    known = find_template_format(checks.model.template, checks.tokenizer)
    calls = "derived" if known.is_derived else f"`{known.calls.name}`"
    if known.reasoning is None:
        return calls, "none"
    return calls, "derived" if known.has_derived_reasoning else "listed"
