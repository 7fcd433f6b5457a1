"""Client tools of Anthropic's API: tools that Anthropic defines and that the client runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from woolly.chat import Tool

_TYPE = re.compile(r"(bash|text_editor|memory|computer)_(\d{8})")

_PATH = {"type": "string", "description": "Absolute path of a file or folder."}
_RANGE = {
    "type": "array",
    "items": {"type": "integer"},
    "minItems": 2,
    "maxItems": 2,
    "description": "First and last line to view, counted from 1; a last line of -1 means the end of the file.",
}
# Arguments of the commands that edit files.
_EDITS: dict[str, Any] = {
    "path": _PATH,
    "view_range": _RANGE,
    "file_text": {"type": "string", "description": "Content of the new file, for create."},
    "old_str": {"type": "string", "description": "Text to replace, which must occur exactly once, for str_replace."},
    "new_str": {"type": "string", "description": "Replacement, for str_replace."},
    "insert_line": {"type": "integer", "description": "Line after which to insert, 0 for the beginning, for insert."},
    "insert_text": {"type": "string", "description": "Text to insert, for insert."},
}
_POINT = {
    "type": "array",
    "items": {"type": "integer"},
    "minItems": 2,
    "maxItems": 2,
    "description": "Position on the screen as [x, y] in pixels.",
}
_ACTIONS = ("key", "type", "mouse_move", "left_click", "left_click_drag", "right_click", "middle_click", "double_click")
_ACTIONS_2025 = ("left_mouse_down", "left_mouse_up", "triple_click", "scroll", "hold_key", "wait")


def client_tool(type: str, name: str, options: Mapping[str, Any]) -> Tool | None:
    """Return the tool with its arguments, or None for a tool that runs on Anthropic's servers.

    `options` are the further fields of the tool, such as the size of the screen.
    """
    found = _TYPE.fullmatch(type)
    if found is None:
        return None
    kind, date = found[1], int(found[2])
    if kind == "bash":
        return _tool(
            name,
            "Run a command in a bash shell that stays open between calls.",
            {
                "command": {"type": "string", "description": "Command to run."},
                "restart": {"type": "boolean", "description": "Restart the shell instead of running a command."},
            },
        )
    if kind == "text_editor":
        return _text_editor(name, date, options)
    if kind == "memory":
        renames = {"old_path": _PATH, "new_path": _PATH}
        commands = ("view", "create", "str_replace", "insert", "delete", "rename")
        text = "View and change files in the folder /memories, which persists between conversations."
        return _tool(name, text, {"command": _one_of(commands), **_EDITS, **renames}, ("command",))
    return _computer(name, date, options)


def _text_editor(name: str, date: int, options: Mapping[str, Any]) -> Tool:
    commands = ("view", "create", "str_replace", "insert", *(() if date > 20250400 else ("undo_edit",)))
    arguments = {**_EDITS}
    if date < 20250700:  # earlier versions insert new_str
        arguments.pop("insert_text")
        arguments["new_str"] = {"type": "string", "description": "Replacement, or text to insert."}
    text = "View, create and edit text files."
    if isinstance(limit := options.get("max_characters"), int):
        text += f" A view shows at most {limit} characters."
    return _tool(name, text, {"command": _one_of(commands), **arguments}, ("command", "path"))


def _computer(name: str, date: int, options: Mapping[str, Any]) -> Tool:
    actions = (*_ACTIONS, "screenshot", "cursor_position", *(_ACTIONS_2025 if date > 20250000 else ()))
    arguments: dict[str, Any] = {
        "action": _one_of(actions),
        "coordinate": _POINT,
        "text": {"type": "string", "description": "Text to type, or keys to press, such as ctrl+s."},
    }
    if date > 20250000:
        arguments |= {
            "start_coordinate": _POINT,
            "scroll_direction": _one_of(("up", "down", "left", "right")),
            "scroll_amount": {"type": "integer", "description": "Number of steps to scroll."},
            "duration": {"type": "number", "description": "Seconds to wait or to hold a key."},
        }
    if options.get("enable_zoom"):
        arguments["action"] = _one_of((*actions, "zoom"))
        four = {**_POINT, "minItems": 4, "maxItems": 4}
        arguments["region"] = {**four, "description": "Part of the screen to zoom into, as [x0, y0, x1, y1]."}
    width, height = options.get("display_width_px"), options.get("display_height_px")
    size = f" of {width} x {height} pixels" if isinstance(width, int) and isinstance(height, int) else ""
    text = f"Use the screen{size}, the mouse and the keyboard of a computer. Take a screenshot to see the result."
    return _tool(name, text, arguments, ("action",))


def _one_of(values: tuple[str, ...]) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}


def _tool(name: str, description: str, arguments: dict[str, Any], required: tuple[str, ...] = ()) -> Tool:
    schema = {"type": "object", "properties": arguments, "required": list(required)}
    return Tool(name, description, schema, False)
