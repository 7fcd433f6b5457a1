"""`woolly tokenize`: converts text to tokens and back."""

from __future__ import annotations

import json
import re
import sys

import click

from woolly.cli.parse.command import command
from woolly.cli.parse.options import AS_JSON, MODEL, NAMED, model_and_text
from woolly.cli.parse.parameter import Argument, Option
from woolly.cli.parse.usage_errors import UsageError
from woolly.cli.terminal.human_readable import plural
from woolly.errors import RequestError
from woolly.store import resolve


@command(
    MODEL,
    Argument("text", "TEXT", "The text. With --detokenize, ids.", shown="standard input, as with -"),
    NAMED,
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
    detokenize: bool,
    special: bool,
    parse_special: bool,
    count: bool,
    as_json: bool,
) -> None:
    """Print the tokens of a text, one per line: id and text."""
    from woolly.tokens import Tokenizer

    model, text = model_and_text("tokenize", model, text, named, 'missing text: woolly tokenize smollm2 "wool"')
    tokenizer = Tokenizer.from_gguf(resolve(model))
    if text == "-":
        try:
            text = sys.stdin.buffer.read().decode()
        except UnicodeDecodeError as error:
            raise RequestError(f"standard input is not UTF-8 (byte {error.start})") from None
    if detokenize:
        ids = _ids(text, tokenizer.n_vocab)
        back = tokenizer.decode(ids)
        click.echo(json.dumps({"ids": ids, "text": back}) if as_json else back)
        return
    ids = tokenizer.encode(text, add_special=special, parse_special=parse_special)
    if as_json:
        pieces = [_piece(tokenizer.token_bytes(token)) for token in ids]
        click.echo(json.dumps({"count": len(ids), "ids": ids, "pieces": pieces}))
    elif count:
        click.echo(len(ids))
    else:
        for token in ids:
            click.echo(f"{token:>7}  {_quoted(tokenizer.token_bytes(token))}")
        click.echo(plural(len(ids), "token"), err=True)


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
