"""CALLS: tools that a model may call, the formats in which it does, and grammars that make it."""

from woolly.serving.tools.event import Arguments, CallStart, Event, Text, ToolCall, gather
from woolly.serving.tools.format import FORMATS, Format, find_format
from woolly.serving.tools.grammar import answer_grammar, call_grammar
from woolly.serving.tools.marks import MarkDetokenizer, mark_ids, marks_of
from woolly.serving.tools.parser import ToolParser, make_call_id
from woolly.serving.tools.prompt import describe_tools, knows_tools
from woolly.serving.tools.tool import Tool, ToolChoice

__all__ = [
    "FORMATS",
    "Arguments",
    "CallStart",
    "Event",
    "Format",
    "MarkDetokenizer",
    "Text",
    "Tool",
    "ToolCall",
    "ToolChoice",
    "ToolParser",
    "answer_grammar",
    "call_grammar",
    "describe_tools",
    "find_format",
    "gather",
    "knows_tools",
    "make_call_id",
    "mark_ids",
    "marks_of",
]
