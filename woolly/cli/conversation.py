"""A conversation and its settings: what `woolly chat` keeps, saves and loads."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from woolly.cli.usage import near
from woolly.engine import SamplingParams
from woolly.errors import RequestError

__all__ = ["Conversation", "changed_settings", "find_setting", "setting_names"]

# What a person may want to set while chatting: the plain ones of SamplingParams.
_SETTABLE = (int, float, bool, str, type(None))
_OTHER_NAMES = {
    "dynatemp_exp": "dynatemp_exponent",
    "length": "max_tokens",
    "mirostat_ent": "mirostat_tau",
    "mirostat_lr": "mirostat_eta",
    "n": "max_tokens",
    "n_predict": "max_tokens",
    "num_predict": "max_tokens",
    "predict": "max_tokens",
    "repetition_penalty": "repeat_penalty",
    "temp": "temperature",
    "top_nsigma": "top_n_sigma",
    "typical": "typical_p",
}


@dataclass
class Conversation:
    """Messages so far, the system prompt, and how answers are sampled."""

    params: SamplingParams
    system: str | None = None
    messages: list[dict[str, str]] = field(default_factory=list)

    @property
    def all_messages(self) -> list[dict[str, str]]:
        """As a chat template takes them."""
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self.messages]

    def take_question(self) -> str | None:
        """Forget the last question and its answer; gives the question, None where there is none."""
        while self.messages and self.messages[-1]["role"] != "user":
            self.messages.pop()
        return self.messages.pop()["content"] if self.messages else None

    def set(self, name: str, text: str) -> None:
        """Change a setting, given as a person types it; RequestError where the name or the value is none."""
        known = find_setting(name)
        if known is None:
            hint = near(name.replace("-", "_"), [*setting_names(), *_OTHER_NAMES])
            raise RequestError(f"there is no setting {name!r}: {hint or 'there are ' + ', '.join(setting_names())}")
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
                    f"stop is {text}; a text or a list of texts was expected, such as {json.dumps(text)}"
                )
            value = (value,) if isinstance(value, str) else tuple(value or ())
        self.params = _changed(self.params, {name: value})

    def save(self, path: Path) -> None:
        """As JSON, which `load` reads."""
        data = {"system": self.system, "messages": self.messages, "settings": changed_settings(self.params)}
        try:
            text = (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()
        except UnicodeEncodeError:  # what was typed was no UTF-8; JSON can escape such halves of characters
            text = (json.dumps(data, indent=2) + "\n").encode()
        try:
            path.expanduser().write_bytes(text)
        except (OSError, ValueError, RuntimeError) as error:  # the latter: a NUL in the path, ~ of no one
            raise RequestError(f"{path} cannot be written ({getattr(error, 'strerror', None) or error})") from None

    def load(self, path: Path) -> None:
        """Replace all by what `save` wrote; a bare list of messages is taken too."""
        try:
            data = json.loads(path.expanduser().read_text(encoding="utf-8"))
        except RecursionError:
            raise RequestError(f"{path} is nested too deeply to be a conversation") from None
        except (OSError, RuntimeError) as error:  # the latter: ~ of no one
            raise RequestError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error})") from None
        except ValueError as error:
            raise RequestError(f"{path} is no JSON ({error})") from None
        data = {"messages": data} if isinstance(data, list) else data
        messages = data.get("messages") if isinstance(data, dict) else None
        if not isinstance(messages, list) or not all(_is_message(message) for message in messages):
            raise RequestError(
                f'{path} holds no conversation: expected {{"messages": [{{"role": ..., "content": ...}}]}}'
            )
        settings, system = data.get("settings", {}), data.get("system")
        if not isinstance(settings, dict):
            raise RequestError(f'the settings in {path} are {_short(settings)}; expected {{"temperature": ...}}')
        if system is not None and not isinstance(system, str):
            raise RequestError(f"the system prompt in {path} is {_short(system)}; a text was expected")
        params = _changed(self.params, {k: v for k, v in settings.items() if k in setting_names()})
        if messages and messages[0]["role"] == "system":
            system = messages.pop(0)["content"]
        self.params, self.system, self.messages = params, system, messages


def _changed(params: SamplingParams, settings: dict[str, Any]) -> SamplingParams:
    temperature = settings.get("temperature", 0)
    if isinstance(temperature, (int, float)) and temperature < 0:
        raise RequestError(
            f"temperature is {temperature}; a number of at least 0 was expected, 0 for the likeliest token"
        )
    try:
        return replace(params, **settings)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:  # such as a number of 400 digits
        raise RequestError(f"{_short(settings)} cannot be set ({error})") from None


def _short(value: Any) -> str:
    try:
        text = json.dumps(value)
    except RecursionError:
        return "nested too deeply"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))


def find_setting(name: str) -> str | None:
    """The setting that a person means by a name, which may be llama.cpp's; None where there is none."""
    name = name.replace("-", "_").lower()
    name = _OTHER_NAMES.get(name, name)
    return name if name in setting_names() else None


def setting_names() -> list[str]:
    """Names that `/set` knows."""
    defaults = SamplingParams()
    known = [f.name for f in fields(defaults) if isinstance(getattr(defaults, f.name), _SETTABLE) or f.name == "stop"]
    hidden = {"n", "logprobs", "prompt_logprobs", "json_object", "custom_sampler"}
    return [name for name in known if name not in hidden]


def changed_settings(params: SamplingParams) -> dict[str, Any]:
    """Settings that differ from the usual."""
    usual = SamplingParams()
    return {n: getattr(params, n) for n in setting_names() if getattr(params, n) != getattr(usual, n)}
