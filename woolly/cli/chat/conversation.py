"""Conversation and its settings: what `woolly chat` saves and loads."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from woolly.chat.compaction import summary_text
from woolly.cli.parse.usage_errors import closest
from woolly.errors import RequestError
from woolly.sampling import SamplingParams, options_of

_ROWS = options_of(SamplingParams)
_OTHER_NAMES = {
    **{flag[2:].replace("-", "_"): row.name for row in _ROWS.values() for flag in row.flags.split() if flag[1] == "-"},
    "length": "max_tokens",
    "n": "max_tokens",
    "n_predict": "max_tokens",
    "num_predict": "max_tokens",
    "predict": "max_tokens",
    "repetition_penalty": "repeat_penalty",
}
_OLD_KEYS = {"sounds": "audio"}  # old and current keys of messages in saved files


@dataclass
class Conversation:
    """Messages, system prompt and sampling parameters."""

    params: SamplingParams
    system: str | None = None
    messages: list[dict[str, Any]] = field(default_factory=list)
    n_forgotten: int = 0  # number of first messages that are saved, but not sent to the model
    # Summaries of these messages, latest last, each with the previous value of n_forgotten.
    notes: list[tuple[int, str]] = field(default_factory=list)

    @property
    def all_messages(self) -> list[dict[str, Any]]:
        """Messages that are sent to the model, with the system prompt first."""
        return self.without(0)

    @property
    def n_turns(self) -> int:
        """Number of questions that are sent to the model."""
        return sum(message["role"] == "user" for message in self.messages[self.n_forgotten :])

    def without(self, n_turns: int) -> list[dict[str, Any]]:
        """Return the messages to send if the oldest turns are forgotten. The system prompt always stays."""
        told = [text for text in (self.system, self.notes and summary_text(self.notes[-1][1])) if text]
        first = [{"role": "system", "content": "\n\n".join(told)}] if told else []
        return [*first, *(with_parts(message) for message in self.messages[self._after(n_turns) :])]

    def forget(self, n_turns: int) -> None:
        """Stop sending the oldest turns to the model. They are still saved."""
        self.n_forgotten = self._after(n_turns)

    def compact(self, note: str, n_turns: int) -> None:
        """Replace the oldest turns and earlier summaries by a summary. They are still saved."""
        self.notes.append((self.n_forgotten, note))
        self.forget(n_turns)

    def expand(self) -> bool:
        """Undo the latest compaction. Return False if there is nothing to undo."""
        if self.notes:
            self.n_forgotten, _ = self.notes.pop()
            return True
        return False

    def _after(self, n_turns: int) -> int:
        """Return the index of the first message after the oldest turns."""
        starts = [i for i in range(self.n_forgotten, len(self.messages)) if self.messages[i]["role"] == "user"]
        if n_turns == 0:
            return self.n_forgotten
        return starts[n_turns] if n_turns < len(starts) else len(self.messages)

    def take_question(self) -> str | None:
        """Remove the last question and its answer. Return the question, or None."""
        if self.n_turns == 0:
            return None
        while self.messages[-1]["role"] != "user":
            self.messages.pop()
        return str(self.messages.pop()["content"])

    def set(self, name: str, text: str) -> None:
        """Set a setting to a value as typed by the user. Raise RequestError if the name or value is invalid."""
        known = find_setting(name)
        if known is None:
            hint = closest(name.replace("-", "_"), {*setting_names(), *_OTHER_NAMES})
            raise RequestError(f"unknown setting {name!r}: {hint or 'expected one of ' + ', '.join(setting_names())}")
        name = known
        value: Any = text
        try:
            value = json.loads(text.lower() if text in ("None", "True", "False") else text)
        except (ValueError, RecursionError):
            value = {"none": None, "off": None}.get(text.lower(), text)
        if name in ("max_tokens", "seed") and value == -1:
            value = None
        if name == "stop":
            if value is not None and not isinstance(value, (str, list)):
                raise RequestError(
                    f"stop is {text}; expected a string or a list of strings, such as {json.dumps(text)}"
                )
            value = (value,) if isinstance(value, str) else tuple(value or ())
        self.params = _changed(self.params, {name: value})

    def save(self, path: Path) -> None:
        """Write the conversation as JSON for `load`."""
        data: dict[str, Any] = {"system": self.system, "messages": self.messages}
        data["settings"] = changed_settings(self.params)
        if self.n_forgotten:
            data["forgotten"] = self.n_forgotten
        if self.notes:
            data["notes"] = self.notes
        try:
            text = (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()
        except UnicodeEncodeError:  # the user typed bytes that are not UTF-8; JSON can escape them
            text = (json.dumps(data, indent=2) + "\n").encode()
        try:
            path.expanduser().write_bytes(text)
        except (
            OSError,
            ValueError,
            RuntimeError,
        ) as error:  # the last two: NUL in the path, ~name of an unknown user
            raise RequestError(f"{path} cannot be written ({getattr(error, 'strerror', None) or error})") from None

    def load(self, path: Path) -> None:
        """Load a file written by `save`, or a plain list of messages, in place of this conversation."""
        try:
            data = json.loads(path.expanduser().read_text(encoding="utf-8"))
        except RecursionError:
            raise RequestError(f"{path} is nested too deeply to be a conversation") from None
        except (OSError, RuntimeError) as error:  # the last: ~name of an unknown user
            raise RequestError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error})") from None
        except ValueError as error:
            raise RequestError(f"{path} is not JSON ({error})") from None
        data = {"messages": data} if isinstance(data, list) else data
        messages = data.get("messages") if isinstance(data, dict) else None
        if not isinstance(messages, list) or not all(_is_message(message) for message in messages):
            raise RequestError(
                f'{path} is not a conversation; expected {{"messages": [{{"role": ..., "content": ...}}]}}'
            )
        messages = [{_OLD_KEYS.get(key, key): value for key, value in one.items()} for one in messages]
        settings, system = data.get("settings", {}), data.get("system")
        if not isinstance(settings, dict):
            raise RequestError(f'the settings in {path} are {_short(settings)}; expected {{"temperature": ...}}')
        if system is not None and not isinstance(system, str):
            raise RequestError(f"the system prompt in {path} is {_short(system)}; expected a string")
        params = _changed(self.params, {k: v for k, v in settings.items() if k in setting_names()})
        forgotten = data.get("forgotten", 0)
        if type(forgotten) is not int or not 0 <= forgotten <= len(messages):
            raise RequestError(f"forgotten in {path} is {_short(forgotten)}; expected a number of its messages")
        notes = data.get("notes", [])
        if not isinstance(notes, list) or not all(_is_note(note, forgotten) for note in notes):
            raise RequestError(f"notes in {path} are {_short(notes)}; expected pairs of a number and a string")
        if messages and messages[0]["role"] == "system":
            system = messages.pop(0)["content"]
            forgotten = max(0, forgotten - 1)
        self.params, self.system, self.messages, self.n_forgotten = params, system, messages, forgotten
        self.notes = [(n_before, text) for n_before, text in notes]


def with_parts(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message as sent to the model: images and audio are parts before the text."""
    media = [{"type": "image", "image": path} for path in message.get("images", ())]
    media += [{"type": "audio", "audio": path} for path in message.get("audio", ())]
    if not media:
        return message
    return {"role": message["role"], "content": [*media, {"type": "text", "text": message["content"]}]}


def _changed(params: SamplingParams, settings: dict[str, Any]) -> SamplingParams:
    temperature = settings.get("temperature", 0)
    if isinstance(temperature, (int, float)) and temperature < 0:
        raise RequestError(
            f"temperature is {temperature}; expected a number of at least 0 (0: always the likeliest token)"
        )
    try:
        return replace(params, **settings)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:  # such as a number with 400 digits
        raise RequestError(f"{_short(settings)} cannot be set ({error})") from None


def _short(value: Any) -> str:
    try:
        text = json.dumps(value)
    except RecursionError:
        return "nested too deeply"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _is_message(message: Any) -> bool:
    """True if a message has a role and a text. Tool calls have OpenAI's format."""
    if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
        return False
    for name in ("images", "audio", *_OLD_KEYS):
        paths = message.get(name, [])
        if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
            return False
    calls = message.get("tool_calls", [])
    functions = (
        [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else [None]
    )
    return len(functions) == len(calls) and all(
        isinstance(one, dict) and all(isinstance(one.get(key), str) for key in ("name", "arguments"))
        for one in functions
    )


def _is_note(note: Any, most: int) -> bool:
    """True if a note consists of a text and the number of messages forgotten before it."""
    if not isinstance(note, list) or len(note) != 2:
        return False
    return type(note[0]) is int and 0 <= note[0] <= most and isinstance(note[1], str)


def find_setting(name: str) -> str | None:
    """Return the setting with this name, which may be llama.cpp's name, or None."""
    name = name.replace("-", "_").lower()
    name = _OTHER_NAMES.get(name, name)
    return name if name in setting_names() else None


def setting_names() -> list[str]:
    """Return the names of settings for `/set`."""
    structures = {"json_schema", "regex", "lark", "grammar"}
    plain = {row.name for row in _ROWS.values() if row.group and row.kind in (int, float, bool)}
    return [name for name in _ROWS if name in plain | structures | {"stop"}]


def changed_settings(params: SamplingParams) -> dict[str, Any]:
    """Return the settings that differ from their defaults."""
    usual = SamplingParams()
    return {n: getattr(params, n) for n in setting_names() if getattr(params, n) != getattr(usual, n)}
