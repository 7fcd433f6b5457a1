"""Chat requests independent of any API, prompt formatting, and events of an answer."""

from typing import TYPE_CHECKING

from woolly.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from woolly.chat.answer_parser import AnswerParser
    from woolly.chat.chat_format import ChatFormat, format_chat, render_prompt
    from woolly.chat.events import CallArguments, CallStart, Event, Finished, Parts, Reasoning, Text, Usage, gather
    from woolly.chat.media import MediaPlaceholder, Modalities
    from woolly.chat.message import AudioPart, FilePart, ImagePart, Message, OtherPart, Part, TextPart, VideoPart
    from woolly.chat.request import ChatRequest, ReasoningOptions
    from woolly.chat.tools.tool import Tool, ToolCall, ToolChoice

__all__ = [
    "AnswerParser",
    "AudioPart",
    "CallArguments",
    "CallStart",
    "ChatFormat",
    "ChatRequest",
    "Event",
    "FilePart",
    "Finished",
    "ImagePart",
    "MediaPlaceholder",
    "Message",
    "Modalities",
    "OtherPart",
    "Part",
    "Parts",
    "Reasoning",
    "ReasoningOptions",
    "Text",
    "TextPart",
    "Tool",
    "ToolCall",
    "ToolChoice",
    "Usage",
    "VideoPart",
    "format_chat",
    "gather",
    "render_prompt",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "events": "CallArguments CallStart Event Finished Parts Reasoning Text Usage gather",
        "chat_format": "ChatFormat format_chat render_prompt",
        "message": "AudioPart FilePart ImagePart Message OtherPart Part TextPart VideoPart",
        "answer_parser": "AnswerParser",
        "request": "ChatRequest ReasoningOptions",
        "media": "Modalities MediaPlaceholder",
        "tools.tool": "Tool ToolCall ToolChoice",
    },
)
