"""Which model and which prompt `woolly run` was given: by words, by options, by standard input."""

from __future__ import annotations

import os
import re
import stat
import sys
import time
from pathlib import Path

import typer

from woolly.cli.options import read_text
from woolly.cli.usage import UsageError
from woolly.errors import StoreError
from woolly.store import DEFAULT_MODEL, is_catalogued, is_model_name, near_models, resolve

if sys.platform == "win32":
    import ctypes
    import msvcrt
else:
    import select

__all__ = ["model_and_prompt"]

# Names of models elsewhere, and names with a tag: taken for a prompt, they would puzzle whoever asks.
_LIKE_A_MODEL = re.compile(
    r"[\w.-]+:[\w.-]+$|(llama|mistral|mixtral|qwen|gemma|phi|deepseek|granite|codellama|tinyllama|starcoder|falcon|olmo"
    r"|gpt-oss|command-r)([\d._-][\w.-]*)?$",
    re.IGNORECASE,
)

# Seconds that a prompt waits for the first byte of a pipe that may never bring any: ssh, cron and CI leave such open.
_TOLD_AFTER, _PATIENCE = 1.0, 10.0


def model_and_prompt(words: list[str], named: str | None, text: str | None, file: str | None) -> tuple[str, str]:
    """The model's name and the whole prompt: standard input, the file, and the prompt itself, in this order.

    Standard input is joined where it is a pipe, a socket or a file, and read to its end where nothing else was given.
    """
    name, prompt = _name_and_words(words, named, text)
    if file is not None and prompt == "-" and file == "-":
        raise UsageError("the prompt and -f both ask for standard input; one of them can")
    if name is not None and not is_catalogued(name):
        resolve(name)  # a model that is not here is told of before a prompt is waited for
    if prompt == "-" or file == "-":
        piped = _whole_input()
        prompt, file = (None if prompt == "-" else prompt), (None if file == "-" else file)
    elif prompt is None and file is None:
        piped = _needed_input(name)
    else:
        piped = _waiting_input()
    parts = [piped, "" if file is None else read_text("--file", Path(file)).removesuffix("\n"), prompt or ""]
    whole = "\n\n".join(part for part in parts if part.strip())
    if not whole:
        raise UsageError("the prompt is empty" if name is None or prompt is not None or file else _lacks_prompt(name))
    return name or DEFAULT_MODEL, whole


def _name_and_words(words: list[str], named: str | None, text: str | None) -> tuple[str | None, str | None]:
    """The model and the prompt as far as words and options tell them."""
    if named is not None and len(words) == 2 and words[0] == named:
        words = words[1:]
    most = 2 - (named is not None) - (text is not None)
    if len(words) > most:
        if text is not None and len(words) <= most + 1:
            raise UsageError(f"the prompt is given twice, as {words[-1]!r} and with -p: leave one of them out")
        expected = "a prompt" if named is not None else "a prompt, or a model and a prompt,"
        verb = "was" if named is not None else "were"
        raise UsageError(f'{expected} {verb} expected, but {len(words)} words came; put the prompt in "quotes"')
    if text is not None:
        return named or (words[0] if words else None), text
    if named is not None:
        return named, words[0] if words else None
    if len(words) == 2:
        return words[0], words[1]
    if words and _is_model(words[0]):
        return words[0], None
    return None, words[0] if words else None


def _is_model(word: str) -> bool:
    """Whether a word that came alone is a model rather than a prompt; StoreError where it is nearly one."""
    if not word.strip() or word == "-":
        return False
    try:
        if is_model_name(word) or word.lower().endswith(".gguf") or Path(word).is_file():
            return True
        if any(character.isspace() for character in word):
            return False
        looks_like_a_path = "/" in word.strip("/")
        if near := near_models(word):
            raise StoreError(
                f"there is no model named {word!r}: did you mean {' or '.join(near)}? (-p {word} makes it the prompt)"
            )
        if _LIKE_A_MODEL.match(word):
            raise StoreError(
                f"there is no model named {word!r}: `woolly list` shows those there are, `woolly pull hf:org/repo`"
                f" fetches others (-p {word} makes it the prompt)"
            )
        if looks_like_a_path:
            raise StoreError(
                f"there is no file and no model named {word!r}: give the path of a GGUF file, or hf:org/repo"
                f" (-p {word} makes it the prompt)"
            )
    except OSError:  # a prompt may be longer than any name
        pass
    return False


def _needed_input(name: str | None) -> str:
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError(
            'a prompt was expected, for instance: woolly run "Why is the sky blue?"'
            if name is None
            else _lacks_prompt(name)
        )
    return _whole_input()


def _lacks_prompt(name: str) -> str:
    return f"{name} is a model; a prompt was expected after it (woolly chat {name} talks with it)"


def _waiting_input() -> str:
    """What a pipe or a file brings beside a prompt. Devices such as /dev/null are not read, nor is a terminal."""
    try:
        if sys.stdin is None or sys.stdin.isatty():
            return ""
        number = sys.stdin.fileno()
        mode = os.fstat(number).st_mode
    except (OSError, ValueError):  # closed; or no file at all, as where a Python program stands in for it
        return "" if sys.stdin is None or sys.stdin.closed else _whole_input()
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        if not _brings(number, _TOLD_AFTER):
            typer.echo("woolly: waiting for standard input, which goes before the prompt (</dev/null: none)", err=True)
            if not _brings(number, _PATIENCE - _TOLD_AFTER):
                typer.echo(
                    f"woolly: nothing came on standard input in {_PATIENCE:g} s, so the prompt is answered alone;"
                    " -f - waits for it however long it takes",
                    err=True,
                )
                return ""
        return _whole_input()
    return _whole_input() if stat.S_ISREG(mode) else ""


if sys.platform == "win32":

    def _brings(number: int, seconds: float) -> bool:
        """Whether a pipe brings a byte, or its end, within so many seconds. Windows can only be asked again."""
        until = time.monotonic() + seconds
        handle, n_bytes = ctypes.c_void_p(msvcrt.get_osfhandle(number)), ctypes.c_ulong()
        while ctypes.windll.kernel32.PeekNamedPipe(handle, None, 0, None, ctypes.byref(n_bytes), None):
            if n_bytes.value:
                return True
            if time.monotonic() >= until:
                return False
            time.sleep(0.02)
        return True

else:

    def _brings(number: int, seconds: float) -> bool:
        """Whether a pipe or a socket brings a byte, or its end, within so many seconds."""
        return bool(select.select([number], [], [], seconds)[0])


def _whole_input() -> str:
    if sys.stdin is None:
        return ""
    if sys.stdin.isatty():
        end = "Ctrl-Z and Enter" if sys.platform == "win32" else "Ctrl-D"
        typer.echo(f"woolly: type the prompt, end with {end}", err=True)
    data = sys.stdin.buffer.read()
    try:
        return data.decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input is not UTF-8 (byte {error.start})") from None
