"""Model and prompt of `woolly run`, from words, options and standard input."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from woolly.cli.parse.options import read_text
from woolly.cli.parse.usage_errors import UsageError
from woolly.cli.terminal.progress import print_status
from woolly.errors import RequestError, StoreError
from woolly.store import find_in_catalogue, is_in_catalogue, is_model_name, is_path, resolve, similar_models

if sys.platform == "win32":
    import ctypes
    import msvcrt
else:
    import select

# Names of well-known models, and names with a tag, which are probably not meant as prompts.
_LIKE_A_MODEL = re.compile(
    r"[\w.-]+:[\w.-]+$|(llama|mistral|mixtral|qwen|gemma|phi|deepseek|granite|codellama|tinyllama|starcoder|falcon|olmo"
    r"|gpt-oss|command-r)([\d._-][\w.-]*)?$",
    re.IGNORECASE,
)

# File suffixes of unsupported model formats.
_OTHER_FORMS = r"\S+\.(nemo|safetensors|onnx|pth?|ckpt|tflite|llamafile|mlmodel|h5)"

_EXAMPLE = 'woolly run "Why is the sky blue?"'
_EMPTY = f"the prompt is empty; add one in quotes or on standard input, for instance: {_EXAMPLE}"

# Seconds to wait for the first byte of a pipe. ssh, cron and CI leave pipes open without sending anything.
_TOLD_AFTER, _PATIENCE = 1.0, 10.0


def model_and_prompt(
    words: list[str], named: str | None, text: str | None, files: Sequence[str] = ()
) -> tuple[str | None, str | None]:
    """Return the model's name, or None, and the complete prompt from standard input, files and the prompt itself.

    Standard input is included if it is a pipe, a socket or a file; without any other prompt, it is read to the end. The
    prompt is None if a model is named and the user could type a prompt at the terminal.
    """
    name, prompt = split_model_and_prompt(words, named, text)
    if words and prompt == words[-1]:
        _reject_command(prompt)
    if name is None and words and re.fullmatch(_OTHER_FORMS, words[0], re.IGNORECASE):
        is_folder = Path(words[0]).is_dir()
        print_status(
            f"woolly: {words[0]} is a folder, and taken for the prompt; as a model: -m {words[0]}"
            if is_folder
            else f"woolly: there is no file {words[0]}, so it is the prompt; -m names a model"
        )
    if [prompt, *files].count("-") > 1:
        raise UsageError("standard input is used twice, by the prompt or -f, but can only be read once")
    if name is not None and (is_path(name) or not is_in_catalogue(name)):
        resolve(name)  # raises errors before waiting for a prompt
    if prompt == "-" or "-" in files:
        piped = _whole_input()
        prompt, files = (None if prompt == "-" else prompt), [file for file in files if file != "-"]
    elif prompt is None and not files:
        if name is not None and is_conversation():
            return name, None
        piped = _needed_input(name)
    else:
        piped = _waiting_input()
    read = [read_text("--file", Path(file)).removesuffix("\n") for file in files]
    whole = "\n\n".join(part for part in (piped, *read, prompt or "") if part.strip())
    if not whole:
        raise UsageError(_EMPTY if name is None or prompt is not None or files else missing_prompt(name))
    return name, whole


def _reject_command(word: str) -> None:
    """Raise UsageError if the complete prompt is the name of a command, as in `./scripts/run serve`."""
    context = click.get_current_context(silent=True)
    root = context.find_root().command if context else None
    if not isinstance(root, click.Group) or context is None:
        return
    if word == "help":
        raise UsageError(f"`woolly {context.info_name} --help` shows the options (-p help makes it the prompt)")
    if word in root.list_commands(context):
        raise UsageError(f"{word} is a command: woolly {word} (-p {word} makes it the prompt)")


def is_conversation() -> bool:
    """True if standard input and output are terminals."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


def split_model_and_prompt(words: list[str], named: str | None, text: str | None) -> tuple[str | None, str | None]:
    """Return the model and the prompt from words and options, each None if missing."""
    if named is not None and len(words) == 2 and words[0] == named:
        words = words[1:]
    most = 2 - (named is not None) - (text is not None)
    if len(words) > most:
        if text is not None and len(words) <= most + 1:
            raise UsageError(f"the prompt is given twice, as {words[-1]!r} and with -p; omit one of them")
        expected = "a prompt" if named is not None else "a prompt, or a model and a prompt"
        raise UsageError(f'expected {expected}, but got {len(words)} words; put the prompt in "quotes"')
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
    """True if a single word is a model and not a prompt. Raise StoreError if it resembles a model."""
    if not word.strip() or word == "-":
        return False
    try:
        if is_model_name(word) or word.lower().endswith(".gguf") or Path(word).is_file():
            return True
        if re.fullmatch(r"\S+\.bin", word, re.IGNORECASE):  # whisper.cpp
            return True
        if any(character.isspace() for character in word):
            return False
        looks_like_a_path = "/" in word.strip("/")
        if near := similar_models(word):
            raise StoreError(
                f"there is no model named {word!r}: did you mean {' or '.join(near)}? (-p {word} makes it the prompt)"
            )
        try:
            find_in_catalogue(word)
        except StoreError as error:  # a known family with an unknown tag
            raise StoreError(f"{error} (-p {word} makes it the prompt)") from None
        if _LIKE_A_MODEL.match(word):
            raise StoreError(
                f"there is no model named {word!r}: `woolly list` shows your models, `woolly pull hf:org/repo`"
                f" downloads others (-p {word} makes it the prompt)"
            )
        if looks_like_a_path:
            raise StoreError(
                f"there is no file or model named {word!r}; expected the path of a GGUF file, or hf:org/repo"
                f" (-p {word} makes it the prompt)"
            )
    except OSError:  # a prompt may be longer than file names can be
        pass
    return False


def _needed_input(name: str | None) -> str:
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError(f"missing prompt, for instance: {_EXAMPLE}" if name is None else missing_prompt(name))
    return _whole_input()


def missing_prompt(name: str) -> str:
    """Return the error for a model without a prompt."""
    advice = f"{name} is a model; missing prompt after it (woolly chat {name} starts a chat)"
    with contextlib.suppress(StoreError):
        if is_path(name) or _is_here(name):
            return advice
        from woolly.cli.first_run.recommendation import choose_size  # measures the memory

        named = find_in_catalogue(choose_size(name))
        if named is not None:
            size = f", {named.size.gigabytes}" if named.size else ""
            return f"{advice}; it is not here yet, so its file is downloaded first ({named.hub}{size})"
    return advice


def _is_here(name: str) -> bool:
    try:
        resolve(name)
    except StoreError:
        return False
    return True


def _waiting_input() -> str:
    """Return text from a pipe or file that accompanies a prompt. Terminals and devices (/dev/null) are not read."""
    try:
        if sys.stdin is None or sys.stdin.isatty():
            return ""
        number = sys.stdin.fileno()
        mode = os.fstat(number).st_mode
    except (OSError, ValueError):  # closed, or replaced by a Python object that is not a file
        return "" if sys.stdin is None or sys.stdin.closed else _whole_input()
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        if not _sends(number, _TOLD_AFTER):
            click.echo("woolly: waiting for standard input, which goes before the prompt (</dev/null: none)", err=True)
            if not _sends(number, _PATIENCE - _TOLD_AFTER):
                click.echo(
                    f"woolly: nothing came on standard input in {_PATIENCE:g} s, so it is ignored; -f - waits without"
                    " a time limit",
                    err=True,
                )
                return ""
        return _whole_input()
    return _whole_input() if stat.S_ISREG(mode) else ""


if sys.platform == "win32":

    def _sends(number: int, seconds: float) -> bool:
        """Return True if a pipe sends a byte, or ends, within `seconds`. Windows can only be polled."""
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

    def _sends(number: int, seconds: float) -> bool:
        """Return True if a pipe or a socket sends a byte, or ends, within `seconds`."""
        return bool(select.select([number], [], [], seconds)[0])


def _whole_input() -> str:
    if sys.stdin is None:
        return ""
    if sys.stdin.isatty():
        end = "Ctrl-Z and Enter" if sys.platform == "win32" else "Ctrl-D"
        click.echo(f"woolly: type the prompt, end with {end}", err=True)
    data = sys.stdin.buffer.read()
    try:
        return data.decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input is not UTF-8 (byte {error.start})") from None


@contextlib.contextmanager
def with_file_names(images: Sequence[str], audio: Sequence[str]) -> Iterator[None]:
    """Replace a position such as images[0] in library errors by the file name."""
    given = {"images": images, "audio": audio}

    def named(found: re.Match[str]) -> str:
        files, at = given[found[1]], int(found[2])
        return Path(files[at]).name if at < len(files) else found[0]

    try:
        yield
    except RequestError as error:
        said = re.sub(r"\b(images|audio)\[(\d+)\]", named, str(error))
        if said == str(error):
            raise
        # Errors about a path already begin with the file name.
        raise error.with_message(re.sub(r"^(.+?): (?=\1 )", "", said), RequestError) from None
