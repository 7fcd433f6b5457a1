"""`woolly tokenize`: converts text to tokens and back."""

from __future__ import annotations

import json
import re
import sys

import click

from woolly.cli.parse.command import command
from woolly.cli.parse.options import AS_JSON, MODEL, NAMED, model_and_text, one_model
from woolly.cli.parse.parameter import Argument, Option
from woolly.cli.parse.usage_errors import UsageError
from woolly.cli.terminal.files import read_utf8
from woolly.cli.terminal.human_readable import plural
from woolly.errors import RequestError
from woolly.store import resolve


@command(
    MODEL,
    Argument("text", "TEXT", "The text. With --detokenize, ids.", shown="standard input, as with -"),
    NAMED,
    Option("--prompt -p", "The text, in place of the argument TEXT."),
    Option("--file -f", "Text file, in place of the argument TEXT.", metavar="FILE"),
    Option("--ids", "Print only the ids, as a list.", bool, default=False),
    Option("--detokenize -d", "Convert ids to text.", bool, default=False),
    Option("--special/--no-special", "Add the tokens at the start and end of a text.", bool, default=True),
    Option("--parse-special/--no-parse-special", "Parse <|im_end|> and other control tokens.", bool, default=True),
    Option("--count", "Print only the number of tokens.", bool, default=False),
    AS_JSON,
)
def tokenize(
    model: str | None,
    text: str | None,
    named: str | None,
    prompt: str | None,
    file: str | None,
    ids: bool,
    detokenize: bool,
    special: bool,
    parse_special: bool,
    count: bool,
    as_json: bool,
) -> None:
    """Print the tokens of a text, one per line: id and text."""
    from woolly.tokens import Tokenizer

    if sum(one is not None for one in (text, prompt, file)) > 1:
        raise UsageError("several texts are given, as an argument, with -p or with -f; omit all but one")
    if prompt is not None:
        model, text = one_model("tokenize", model, named), prompt
    elif file is not None:
        model, text = one_model("tokenize", model, named), read_utf8(file)
    else:
        model, text = model_and_text("tokenize", model, text, named, 'missing text: woolly tokenize smollm2 "wool"')
    tokenizer = Tokenizer.from_gguf(resolve(model))
    if text == "-" and prompt is None and file is None:
        try:
            text = sys.stdin.buffer.read().decode()
        except UnicodeDecodeError as error:
            raise RequestError(f"standard input is not UTF-8 (byte {error.start})") from None
    if detokenize:
        tokens = _ids(text, tokenizer.n_vocab)
        back = tokenizer.decode(tokens)
        click.echo(json.dumps({"ids": tokens, "text": back}) if as_json else back)
        return
    tokens = list(tokenizer.encode(text, add_special=special, parse_special=parse_special))
    if as_json:
        pieces = [_piece(tokenizer.token_bytes(token)) for token in tokens]
        click.echo(json.dumps({"count": len(tokens), "ids": tokens, "pieces": pieces}))
    elif count:
        click.echo(len(tokens))
    elif ids:
        click.echo(tokens)
    else:
        for token in tokens:
            click.echo(f"{token:>7}  {_quoted(tokenizer.token_bytes(token))}")
        click.echo(plural(len(tokens), "token"), err=True)


def _piece(data: bytes) -> str:
    """Return the text of a token. Bytes that are only part of a character are escaped."""
    return data.decode("utf-8", "backslashreplace")


def _quoted(data: bytes) -> str:
    """Return the text of a token in quotes. Bytes are escaped afterwards, because repr would double backslashes."""
    shown = repr(data.decode("utf-8", "surrogateescape"))
    return re.sub(r"\\udc([89a-f][0-9a-f])", r"\\x\1", shown)


def _ids(text: str, n_vocab: int) -> list[int]:
    words = re.split(r"[\s,\[\]]+", text.strip(" \n\t[],"))
    try:
        ids = [int(word) for word in words if word]
    except ValueError:
        raise UsageError(f"--detokenize needs integers, such as 504 5290 or [504, 5290], not {text[:60]!r}") from None
    for token in ids:
        if not 0 <= token < n_vocab:
            raise UsageError(f"unknown token {token}; the vocabulary has 0 to {n_vocab - 1}")
    return ids
