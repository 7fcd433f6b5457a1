"""Every flag of llama.cpp is honored, mapped, accepted with a notice, or rejected with the reason."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

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


def line(command: str, words: str, environment: dict[str, str] | None = None) -> list[str]:
    made = app.get_command(click.Context(app), command)
    assert made is not None
    context = click.Context(made, info_name=command, parent=click.Context(app, info_name="woolly"))
    return translated(context, words.split(), environment or {})


def test_variables_of_llama_cpp_are_read_and_reported_once(capsys):
    environment = {"LLAMA_ARG_PORT": "81", "LLAMA_ARG_CTX_SIZE": "4096", "LLAMA_ARG_NO_MMAP": "1", "LLAMA_API_KEY": "k"}
    assert line("serve", "--host h", environment) == [
        "--host",
        "h",
        "--api-key",
        "k",
        "--ctx-size",
        "4096",
        "--port",
        "81",
    ]
    told = capsys.readouterr().err.splitlines()
    assert told[-1] == (
        "woolly: LLAMA_API_KEY, LLAMA_ARG_CTX_SIZE, LLAMA_ARG_NO_MMAP, LLAMA_ARG_PORT are read from the environment"
    )
    assert told[:-1] == ["woolly: --no-mmap has no effect: model files are always mapped into memory"]


def test_flags_and_variables_of_woolly_precede_those_of_llama_cpp(capsys):
    assert line("serve", "--port 80", {"LLAMA_ARG_PORT": "81"}) == ["--port", "80"]
    assert line("serve", "", {"LLAMA_ARG_PORT": "81", "WOOLLY_PORT": "82"}) == []
    assert line("serve", "a.gguf", {"LLAMA_ARG_MODEL": "b.gguf"}) == ["a.gguf"]
    assert line("run", "hi", {"LLAMA_ARG_MODEL": "b.gguf"}) == ["hi", "--model", "b.gguf"]
    assert line("quantize", "a b", {"LLAMA_ARG_THREADS": "4"}) == ["a", "b"]


def test_variables_of_the_server_do_not_stop_other_commands(capsys):
    assert line("run", "hi", {"LLAMA_API_KEY": "k", "LLAMA_ARG_PORT": "81", "LLAMA_ARG_FOO": "1"}) == ["hi"]
    assert capsys.readouterr().err == ""
    assert line("embed", "hi", {"LLAMA_ARG_HF_REPO": "a/b"}) == ["hi"]
    assert capsys.readouterr().err.startswith("woolly: LLAMA_ARG_HF_REPO has no effect: ")
    assert line("serve", "", {"LLAMA_ARG_FOO": "1"}) == []
    assert capsys.readouterr().err == "woolly: LLAMA_ARG_FOO has no effect: woolly serve has no option --foo\n"


def test_switches_in_variables_may_be_off(capsys):
    assert line("serve", "", {"LLAMA_ARG_ENDPOINT_SLOTS": "0", "LLAMA_ARG_ENDPOINT_PROPS": "1"}) == [
        "--props",
        "--no-slots",
    ]
    assert line("serve", "", {"LLAMA_ARG_NO_UI": "1"}) == ["--no-ui"]
    with pytest.raises(UsageError, match=r"--rpc host:1: llama\.cpp's RPC is not supported"):
        line("serve", "", {"LLAMA_ARG_RPC": "host:1"})


def test_variables_of_ollama_are_named_with_their_equivalents(capsys):
    assert line("serve", "", {"OLLAMA_CONTEXT_LENGTH": "8192", "OLLAMA_FLASH_ATTENTION": "1"}) == []
    assert capsys.readouterr().err == (
        "woolly: OLLAMA_CONTEXT_LENGTH, OLLAMA_FLASH_ATTENTION of Ollama have no effect; Woolly reads WOOLLY_CTX_SIZE\n"
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--max-model-len 32k", "--ctx-size 32000"), ("--max-model-len 1K", "--ctx-size 1024"),
        ("--served-model-name a", "--alias a"), ("m --served-model-name a b --port 1", "m --alias a,b --port 1"),
        ("--gpu-memory-utilization 0.9 -tp 2", ""),
        ("--enable-auto-tool-choice --tool-call-parser hermes", ""), ("--kv-cache-dtype auto", ""),
        ("--trust-remote-code --dtype bfloat16", ""), ("--allowed-origins [\"a\"]", "--cors-origins a"),
    ],
)  # fmt: skip
def test_flags_of_vllm_have_an_equivalent(words, expected, capsys):
    assert line("serve", words) == expected.split()


@pytest.mark.parametrize(
    ("command", "words", "expected"),
    [
        ("run", "--format json", ["--json-schema", '{"type": "object"}']),
        ("run", "--think=false", ["--reasoning", "off"]),
        ("run", "--think", ["--reasoning", "on"]), ("chat", "--think=low", ["--reasoning-effort", "low"]),
        ("run", "--keepalive 5m", []), ("serve", "--keepalive 5m", ["--keep-alive", "300"]),
        ("serve", "--keepalive 1h30m", ["--keep-alive", "5400"]), ("serve", "--keepalive=45", ["--keep-alive", "45"]),
        ("serve", "--keepalive -1", ["--keep-alive", "0"]), ("run", "--nowordwrap", []),
    ],
)  # fmt: skip
def test_flags_of_ollama_have_an_equivalent(command, words, expected, capsys):
    assert line(command, words) == expected


def test_tokens_of_the_hub_reach_the_downloader(monkeypatch):
    monkeypatch.setattr(os, "environ", {})
    assert line("run", "-hft hf_x --offline") == []
    assert os.environ == {"HF_TOKEN": "hf_x", "WOOLLY_OFFLINE": "1"}


def test_devices_are_listed():
    with pytest.raises(click.exceptions.Exit):
        line("serve", "--list-devices")


def test_list_of_missing_flags_is_empty_for_a_checkout_with_known_rows(tmp_path):
    """`scripts/llama-flags` reads rows as they are written in llama.cpp's source, and names those that are unknown."""
    (tmp_path / "common").mkdir()
    rows = 'add_opt(common_arg(\n {"-c", "--ctx-size"}, "N",\n "size (default: 0)",\n'
    rows += '[](common_params & p, int v) { p.n = v; }\n).set_env("LLAMA_ARG_CTX_SIZE"));\n'
    rows += '// add_opt(common_arg({"--old"}));\nadd_opt(common_arg({"--new"}, {"--no-new"}, "x", [](bool b) {}));\n'
    (tmp_path / "common" / "arg.cpp").write_text(rows)
    for folder, name, text in (
        ("llama-bench", "llama-bench", 'if (arg == "-p")'),
        ("quantize", "quantize", '"--pure"'),
    ):
        (tmp_path / "tools" / folder).mkdir(parents=True)
        (tmp_path / "tools" / folder / f"{name}.cpp").write_text(text)
    script = Path(__file__).resolve().parents[2] / "scripts" / "llama-flags"
    done = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout.startswith("2 rows, ")
    assert "--new is unknown to woolly serve\n" in done.stdout and "--no-new is not in tests/cases\n" in done.stdout
    assert "--ctx-size" not in done.stdout and "--old" not in done.stdout
