"""Every flag of llama.cpp is honored, mapped, accepted with a notice, or rejected with the reason."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import click
import pytest

from tests.cases import llama_arguments, llama_tool_arguments
from woolly.cli.app import app
from woolly.cli.parse.flags.table import find_flag
from woolly.cli.parse.translation import translated
from woolly.cli.parse.usage_errors import UsageError

COMMANDS = ("serve", "run", "chat", "bench", "perplexity", "quantize", "imatrix", "tokenize", "embed")


def rows_for(command: str) -> Iterator[tuple[str, str, bool]]:
    """Yield each flag that the original of a command has, with a value, and whether it takes one."""
    own = llama_tool_arguments.OWN_ROWS
    groups = {command: own[command]} if command in own else {**llama_arguments.ROWS, **llama_tool_arguments.ROWS}
    for commands, text in groups.items():
        if command in commands.split():
            for line in filter(None, text.splitlines()):
                names, equals, value = line.partition(" = ")
                for name in names.replace(" / ", " ").split():
                    yield name, value, bool(equals)


def outcome(command: str, name: str, value: str, takes_value: bool, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what the command does with a flag."""
    made = app.get_command(click.Context(app), command)
    assert made is not None
    context = click.Context(
        made, info_name=command, parent=click.Context(app, info_name="woolly", help_option_names=["-h", "--help"])
    )
    words = [name, value] if takes_value else [name]
    capsys.readouterr()
    try:
        result = translated(context, words, {})
    except click.exceptions.Exit:
        return "honored"
    except UsageError as error:
        text = str(error)
        if text.startswith("unknown option"):
            return "unknown"
        assert text.count("\n") == 0 and len(text) > len(name) + 20, text
        return "rejected"
    told = capsys.readouterr().err
    options = {
        option for parameter in made.get_params(context) for option in (*parameter.opts, *parameter.secondary_opts)
    }
    if name in options:
        known = made.make_parser(context)
        try:
            _, left, _ = known.parse_args(list(result))
        except click.UsageError as error:
            return f"mismatch: {error.format_message()}"
        assert not left, (name, left)
        return "honored"
    if name.partition("=")[0] in result or any(word not in options for word in result[:1]):
        return "unknown"
    if result:
        return "mapped"
    row = find_flag(command, name, dict.fromkeys(options))
    assert row is not None
    if told:
        return "warned"
    state = row.value_of(name, value).lower()
    if row.sets or row.into is not None:
        return "mapped"
    return "always true" if state in row.done.split() else "silent"


@pytest.mark.parametrize("command", COMMANDS)
def test_no_flag_is_unknown_or_silent(command, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.txt").write_text("Be brief.")
    monkeypatch.setattr(os, "environ", dict(os.environ))
    found = {name: outcome(command, *row, capsys) for row in rows_for(command) for name in row[:1]}
    counts = Counter(found.values())
    assert sum(counts.values()) > 10
    bad = {
        name: what
        for name, what in found.items()
        if what not in ("honored", "mapped", "warned", "rejected", "always true")
    }
    print(command, dict(counts))
    assert not bad, counts


def test_list_has_all_rows():
    rows = [
        line
        for table in (llama_arguments, llama_tool_arguments)
        for text in table.ROWS.values()
        for line in text.split("\n")
    ]
    assert len(list(filter(None, rows))) == 349
