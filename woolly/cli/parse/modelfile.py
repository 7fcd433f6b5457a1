"""Ollama's Modelfile: read as the settings of a derived model, and written from them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from woolly.cli.parse.usage_errors import closest
from woolly.errors import StoreError

# Keys of presets.toml by Ollama's parameter; all others have the same name in both.
_KEYS = {"num_predict": "max_tokens", "num_ctx": "ctx", "num_gpu": "gpu_layers", "num_thread": "threads"}
_SAME = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty", "repeat_last_n", "presence_penalty",
    "frequency_penalty", "seed", "stop", "mirostat", "mirostat_tau", "mirostat_eta",
)  # fmt: skip
# Parameters that cannot change an answer here.
_NO_EFFECT = (
    "num_keep", "num_batch", "main_gpu", "use_mmap", "use_mlock", "low_vram", "numa", "f16_kv", "vocab_only",
)  # fmt: skip
_REJECTED = {
    "TEMPLATE": "Ollama's Go templates are not supported, and the template of the model is used; remove it, or convert"
    " it to Jinja for --chat-template-file",
    "MESSAGE": "a derived model has no messages; put examples into SYSTEM",
    "DRAFT": "set a draft model with -md",
}
_INSTRUCTIONS = ("FROM", "PARAMETER", "SYSTEM", "ADAPTER", "LICENSE", "REQUIRES", *_REJECTED)
_NO_LIMIT = (-1, -2)  # values of num_predict


@dataclass(frozen=True)
class Modelfile:
    """Base model, system prompt, and settings as keys of presets.toml."""

    base: str
    system: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()  # instructions without effect


def read_modelfile(text: str, folder: Path) -> Modelfile:
    """Parse a Modelfile; paths are relative to `folder`. Raise StoreError for what cannot be honored."""
    base: str | None = None
    system: str | None = None
    settings: dict[str, Any] = {}
    ignored: list[str] = []
    for number, name, value in _instructions(text):
        where = f"line {number} of the Modelfile"
        if name not in _INSTRUCTIONS:
            raise StoreError(f"{where} begins with {name!r}; {closest(name, _INSTRUCTIONS) or 'expected FROM'}")
        if name in _REJECTED:
            raise StoreError(f"{where}: {name} is not supported: {_REJECTED[name]}")
        if not value and name != "SYSTEM":
            raise StoreError(f"{where}: {name} has no value")
        if name == "FROM":
            base = _path_or_name(value, folder)
        elif name == "SYSTEM":
            system = value
        elif name == "ADAPTER":
            settings.setdefault("lora", []).append(_path_or_name(value, folder))
        elif name == "PARAMETER":
            key, _, given = value.partition(" ")
            if key in _NO_EFFECT:
                ignored.append(f"PARAMETER {key}")
            else:
                _add(settings, where, key, _unquoted(given.strip()))
        else:
            ignored.append(name)
    if base is None:
        raise StoreError("the Modelfile has no line FROM, which names the base model")
    return Modelfile(base, system or None, settings, tuple(dict.fromkeys(ignored)))


def write_modelfile(base: str, system: str | None, settings: Mapping[str, Any]) -> str:
    """Return a Modelfile with these settings, which `read_modelfile` reads back."""
    lines = [f"FROM {base}"]
    names = {key: name for name, key in _KEYS.items()}
    for key, value in settings.items():
        for one in value if isinstance(value, (list, tuple)) else [value]:
            word = one if isinstance(one, str) else json.dumps(one)
            quoted = json.dumps(word, ensure_ascii=False) if isinstance(one, str) and key != "lora" else word
            lines.append(f"ADAPTER {one}" if key == "lora" else f"PARAMETER {names.get(key, key)} {quoted}")
    if system is not None:
        lines.append(f'SYSTEM """{system}"""')
    return "\n".join(lines) + "\n"


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield line number, instruction in upper case and value. Values in three quotes may have several lines."""
    lines = text.splitlines()
    i = 0
    while i < len(lines):
        number, line = i + 1, lines[i].strip()
        i += 1
        if not line or line.startswith("#"):
            continue
        name, _, value = line.partition(" ")
        value = value.strip()
        if value.startswith('"""'):
            value = value[3:]
            while '"""' not in value:
                if i == len(lines):
                    raise StoreError(f'line {number} of the Modelfile opens """, which is not closed')
                value += "\n" + lines[i]
                i += 1
            value = value[: value.index('"""')]
        elif name.upper() != "PARAMETER":
            value = _unquoted(value)
        yield number, name.upper(), value


def _unquoted(value: str) -> str:
    """Return a value without its quotes and with its escapes resolved."""
    if len(value) < 2 or value[0] != '"' or value[-1] != '"':
        return value
    try:
        return str(json.loads(value))
    except ValueError:
        return value[1:-1]


def _add(settings: dict[str, Any], where: str, name: str, value: str) -> None:
    key = _KEYS.get(name, name)
    if name not in (*_KEYS, *_SAME):
        known = (*_KEYS, *_SAME, *_NO_EFFECT)
        hint = closest(name, known) or f"supported are {', '.join((*_KEYS, *_SAME))}"
        raise StoreError(f"{where}: the parameter {name!r} is not supported; {hint}")
    if key == "stop":
        settings.setdefault("stop", []).append(value)
        return
    if not re.fullmatch(r"-?\d+(\.\d+)?([eE][-+]?\d+)?", value):
        raise StoreError(f"{where}: {name} is {value!r}; expected a number")
    number = float(value)
    if not math.isfinite(number):
        raise StoreError(f"{where}: {name} is {value[:40]}, which is too large; use a smaller number")
    whole = int(number) if number == int(number) and "." not in value else None
    if key == "max_tokens" and whole in _NO_LIMIT:
        settings.pop(key, None)
    else:
        settings[key] = number if whole is None else whole


def _path_or_name(value: str, folder: Path) -> str:
    """Return the absolute path of an existing file, or a model's name unchanged."""
    path = Path(value).expanduser()
    found = path if path.is_absolute() else folder / path
    if found.exists():
        return str(found.resolve())
    if value.startswith((".", "/", "~")):
        raise StoreError(f"the Modelfile names {value}, which does not exist; paths are relative to the Modelfile")
    return value
