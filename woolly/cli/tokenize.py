"""`woolly tokenize`: text to tokens, and back."""

from __future__ import annotations

import json
import re
import sys
from typing import Annotated

import typer

from woolly.cli.options import AsJson, ModelName, ModelOption, model_and_text
from woolly.cli.sizes import counted
from woolly.cli.usage import UsageError
from woolly.errors import RequestError
from woolly.store import resolve

__all__ = ["tokenize"]


def tokenize(
    model: ModelName = None,
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="TEXT",
            help="The text. With --detokenize, ids.",
            show_default="standard input, as with -",
        ),
    ] = None,
    named: ModelOption = None,
    detokenize: Annotated[bool, typer.Option("--detokenize", "-d", help="From ids back to text.")] = False,
    special: Annotated[
        bool,
        typer.Option("--special/--no-special", help="Add the tokens that begin and end a text."),
    ] = True,
    parse_special: Annotated[
        bool,
        typer.Option("--parse-special/--no-parse-special", help="Read <|im_end|> and the like as tokens."),
    ] = True,
    count: Annotated[bool, typer.Option("--count", help="Print only how many tokens there are.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the tokens of a text, one line each: id and piece."""
    from woolly.text import Tokenizer

    model, text = model_and_text("tokenize", model, text, named, 'a text was expected: woolly tokenize smollm2 "wool"')
    tokenizer = Tokenizer.from_gguf(resolve(model))
    if text == "-":
        try:
            text = sys.stdin.buffer.read().decode()
        except UnicodeDecodeError as error:
            raise RequestError(f"standard input is not UTF-8 (byte {error.start})") from None
    if detokenize:
        ids = _ids(text, tokenizer.n_vocab)
        back = tokenizer.decode(ids)
        typer.echo(json.dumps({"ids": ids, "text": back}) if as_json else back)
        return
    ids = tokenizer.encode(text, add_special=special, parse_special=parse_special)
    if as_json:
        pieces = [_piece(tokenizer.token_bytes(token)) for token in ids]
        typer.echo(json.dumps({"count": len(ids), "ids": ids, "pieces": pieces}))
    elif count:
        typer.echo(len(ids))
    else:
        for token in ids:
            typer.echo(f"{token:>7}  {_piece(tokenizer.token_bytes(token))!r}")
        typer.echo(counted(len(ids), "token"), err=True)


def _piece(data: bytes) -> str:
    """What a token adds to a text; bytes that are part of a character are written out."""
    return data.decode("utf-8", "backslashreplace")


def _ids(text: str, n_vocab: int) -> list[int]:
    words = re.split(r"[\s,\[\]]+", text.strip(" \n\t[],"))
    try:
        ids = [int(word) for word in words if word]
    except ValueError:
        raise UsageError(
            f"--detokenize takes whole numbers, such as 504 5290 or [504, 5290], not {text[:60]!r}"
        ) from None
    for token in ids:
        if not 0 <= token < n_vocab:
            raise UsageError(f"there is no token {token}: this vocabulary has 0 to {n_vocab - 1}")
    return ids
