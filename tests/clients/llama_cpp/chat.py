"""Runs the test cases of llama.cpp's chat parsers against Woolly's, and prints how many pass per template."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.cases.tiny import byte_vocabulary
from tests.clients.llama_cpp.chat_cases import Case, Reader
from woolly.chat import ChatRequest, Message, Tool, ToolCall, ToolChoice, Usage, format_chat, gather
from woolly.chat.request import ReasoningOptions
from woolly.errors import WoollyError
from woolly.templates import ChatTemplate
from woolly.tokens import Tokenizer

# Strings that are control tokens in the vocabularies of the templates' models.
_CONTROL = re.compile(r"<[|｜][^<>\s]+>|<[^<>\s|｜]+[|｜]>|\[(?:TOOL_CALLS|ARGS|CALL_ID)\]")

# Cases in which Woolly reads an answer differently on purpose: template, part of the answer, reason.
DIFFERENT = (
    ("", "```json", "a JSON schema does not let the model write a code fence"),
    ("command-r7b", '"tool_name": "special_function", ', "a call that ends before its arguments is text"),
    ("Cohere2MoE", '"tool_name": "special_function", ', "a call that ends before its arguments is text"),
    ("MiniMax-M3", "<text>hi", "nested elements are an object, if the schema accepts objects"),
    ("Apriel-1.6", "[BEGIN FINAL RESPONSE]", "the end of the prompt is not part of the reasoning"),
    ("moonshotai-Kimi-K2.jinja", " thinking</think>", "the model does not reason, so no reasoning can be continued"),
    ("gpt-oss", "to=container.exec", "a message to an unknown tool is text; llama.cpp drops it"),
    ("gpt-oss", "to=python ", "a message to an unknown tool is text; llama.cpp drops it"),
)


def main() -> int:
    """Returns 1 if a case failed."""
    parser = argparse.ArgumentParser(prog="scripts/llama-chat-tests", description=__doc__)
    parser.add_argument("checkout", type=Path, help="a checkout of llama.cpp: tests/test-chat.cpp and models/templates")
    parser.add_argument("--template", default="", help="only templates whose name contains this")
    parser.add_argument("--verbose", action="store_true", help="print what was expected and read in each failed case")
    given = parser.parse_args()
    source = given.checkout / "tests" / "test-chat.cpp"
    if not source.is_file():
        parser.error(f"{source} does not exist")
    reader = Reader(source.read_text(encoding="utf-8"))
    cases = [case for case in reader.read() if given.template.lower() in case.template.lower()]
    passed: Counter[str] = Counter()
    different: Counter[str] = Counter()
    for case in cases:
        fault = run(case, given.checkout)
        reason = None if fault is None else _reason(case)
        passed[case.template] += fault is None
        different[case.template] += reason is not None
        if fault is not None:
            what = "FAILED" if reason is None else "differs"
            note = f": {reason}" if reason else ""
            print(f"{what} {case.name}{note}" + (f"\n{fault}\n" if given.verbose else ""), file=sys.stderr)
    print("| template | cases | passed | different on purpose |\n|---|---|---|---|")
    for template, n in sorted(Counter(case.template for case in cases).items()):
        print(f"| {Path(template).stem} | {n} | {passed[template]} | {different[template] or ''} |")
    n_passed, n_different = sum(passed.values()), sum(different.values())
    print(f"\n{n_passed} of {len(cases)} passed, {n_different} differ on purpose, {reader.n_unread} could not be read")
    return int(n_passed + n_different < len(cases) or reader.n_unread > 0)


def _reason(case: Case) -> str | None:
    """Return the reason why a case differs on purpose, or None."""
    return next((why for name, part, why in DIFFERENT if name in case.template and part in case.answer), None)


def run(case: Case, checkout: Path) -> str | None:
    """Return None if Woolly reads the answer as llama.cpp does, or else what differs."""
    source = (checkout / case.template).read_text(encoding="utf-8")
    template, tokenizer = _opened(source, case.template)
    expected = _expected(case)
    try:
        layout = format_chat(_request(case), template, tokenizer)
    except WoollyError as error:
        return f"answer {case.answer!r}\nerror {error}"
    answer = _as_shown(case.answer, layout.shown, tokenizer)
    found = []
    for pieces in ([answer], answer):
        parser = layout.parser()
        events = [event for piece in pieces for event in parser.push(piece)]
        made = gather(events + parser.finish("length" if case.options.get("is_partial") else "stop", Usage(1, 0, 1)))
        found.append(
            (made.text.strip(), made.reasoning.strip(), [_plain(c.name, c.arguments) for c in made.tool_calls])
        )
    if found[0] == found[1] == expected:
        return None
    shown = "" if answer == case.answer else f"\nas shown {answer!r}"
    streamed = "" if found[0] == found[1] else f"\nstreamed {found[1]}"
    return f"answer {case.answer!r}{shown}\nexpected {expected}\nread     {found[0]}{streamed}\nformat {layout.format}"


def _request(case: Case) -> ChatRequest:
    options = case.options
    tools = [Tool(name, text, json.loads(schema)) for name, text, schema in options.get("tools", ())]
    mode = "required" if str(options.get("tool_choice", "")).endswith("REQUIRED") else "auto"
    messages = [_message(each) for each in options.get("messages", ())] or [Message("user", "Hey there!")]
    is_split = not str(options.get("reasoning_format", "NONE")).endswith("NONE")
    variables = {} if options.get("enable_thinking", True) else {"effort": "none"}
    schema = options.get("json_schema")
    return ChatRequest(
        tuple(messages),
        tools=ToolChoice.of(tools, mode, is_parallel=options.get("parallel_tool_calls", True))
        if tools
        else ToolChoice(),
        schema=None if schema is None else json.loads(schema),
        reasoning=ReasoningOptions(is_split=is_split, **variables),
        continue_final="continue_final_message" in options,
    )


def _message(given: dict[str, Any]) -> Message:
    calls = tuple(ToolCall(id or "call0", name, arguments) for name, arguments, id in given.get("calls", ()))
    return Message(
        given["role"],
        given.get("content") or None if calls else given.get("content", ""),
        calls=calls,
        call_id=given.get("tool_call_id"),
        reasoning=given.get("reasoning") or None,
    )


def _expected(case: Case) -> tuple[str, str, list[Any]]:
    """Return text, reasoning and calls, without the beginning of a continued message, which is part of the prompt."""
    options = case.options
    whole = options.get("expect") or {"content": "", "reasoning": "", "calls": []}
    text = options.get("expect_content", whole["content"])
    reasoning = options.get("expect_reasoning", whole["reasoning"])
    calls = options.get("expect_tool_calls", whole["calls"])
    if "continue_final_message" in options:
        last = options["messages"][-1]
        text = text.removeprefix(last["content"])
        reasoning = reasoning.removeprefix(last["reasoning"])
    return text.strip(), reasoning.strip(), [_plain(name, arguments) for name, arguments, *_ in calls]


def _plain(name: str, arguments: str) -> tuple[str, Any]:
    try:
        return name, json.loads(arguments or "{}")
    except ValueError:
        return name, "".join(arguments.split())  # a call that is cut off


@lru_cache(8)
def _opened(source: str, name: str) -> tuple[ChatTemplate, Tokenizer]:
    """Return a template, and a vocabulary of bytes with the control tokens of its family."""
    marks = list(dict.fromkeys(_CONTROL.findall(source)))
    if "LFM2" in name:
        marks += ["<|tool_call_start|>", "<|tool_call_end|>"]
    vocabulary = byte_vocabulary()
    marks = [mark for mark in dict.fromkeys(marks) if mark not in vocabulary["tokenizer.ggml.tokens"]]
    types = [*vocabulary["tokenizer.ggml.token_type"], *[3] * len(marks)]
    vocabulary["tokenizer.ggml.tokens"] = [*vocabulary["tokenizer.ggml.tokens"], *marks]
    vocabulary["tokenizer.ggml.token_type"] = np.asarray(types, np.int32)
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    return template.for_tools, Tokenizer.from_metadata(vocabulary)


def _as_shown(answer: str, shown: frozenset[int], tokenizer: Tokenizer) -> str:
    """Return the text that the engine passes to a parser: control tokens are dropped unless the format shows them."""
    for mark in dict.fromkeys(_CONTROL.findall(answer)):
        ids = tokenizer.encode(mark, add_special=False, parse_special=True)
        if len(ids) == 1 and tokenizer.is_special(ids[0]) and ids[0] not in shown:
            answer = answer.replace(mark, "")
    return answer


if __name__ == "__main__":
    sys.exit(main())
