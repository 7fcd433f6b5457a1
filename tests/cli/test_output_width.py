"""Output fits the terminal, is complete in a pipe, and leaves nothing behind."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from tests.cases.tiny import TINY, write_tiny
from tests.cli.terminal import woolly
from woolly.cli.commands import plan as plan_command
from woolly.cli.commands.bench_formats import write
from woolly.cli.commands.why import _screen
from woolly.cli.parse.options import complete_model
from woolly.cli.terminal import progress
from woolly.cli.terminal.progress import bytes_bar, steps_bar
from woolly.cli.terminal.screen import print_table, stdout_console
from woolly.measure.diagnosis import Limits, Run, Situation, StepGroup
from woolly.measure.profiler import Profile


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny(TINY["granite"], tmp_path_factory.mktemp("screen") / "tiny.gguf")


def terminal(width):
    return Console(
        file=io.StringIO(), force_terminal=True, width=width, markup=False, highlight=False, color_system=None
    )


def seen(console):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())


def test_piped_table_is_complete_and_has_no_trailing_spaces(capsys):
    table = Table("name", "value", box=None, pad_edge=False)
    table.add_row("x" * 300, "a " * 100)
    table.add_row("y", "b")
    print_table(stdout_console(), table)
    head, first, second = capsys.readouterr().out.splitlines()
    assert first == f"{'x' * 300}  {'a ' * 100}".rstrip()
    assert head.rstrip() == head
    assert second.rstrip() == second


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_progress_bar_leaves_room_for_the_echo_of_ctrl_c(width):
    for bar in (lambda c: bytes_bar("a-very-long-name-of-a-model.gguf to Q4_K_M", c), lambda c: steps_bar("x", "y", c)):
        console = terminal(width)
        with bar(console) as report:
            report(30_000_000, 100_000_000)
        lines = [line for line in re.split(r"[\r\n]", seen(console)) if line.strip()]
        assert lines
        assert max(map(len, lines)) <= width - 2


def test_messages_are_not_truncated_without_a_terminal(capsys):
    progress.print_status("word " * 40)
    assert capsys.readouterr().err.count("\n") == 1


def run_of(name, n_tokens, seconds):
    parts = (
        StepGroup("qkv", seconds / 2, Limits(seconds / 4, seconds / 8)),
        StepGroup("other", seconds / 2, Limits(0, 0)),
    )
    return Run(name, n_tokens, parts)


def examination(threads=1, cores=1, several=1, busy=0.5):
    situation = Situation(
        prompt=run_of("pp64", 64, 1.0), one=run_of("tg32 @ d64", 1, 0.1), several=run_of("tg32 @ d64", several, 0.1),
        threads=threads, cores=cores, cores_seconds=None, level="scalar", best_level="scalar", bits=4.5,
        target_bits=4.5, target_type="Q4_K_M", kv_type="f16", kv_seconds={}, depth=64, weight_bytes=10**8,
        kept_bytes=10**8, packing_seconds=0.0, available_bytes=10**9, busy=busy, disk_bytes=0.0,
    )  # fmt: skip
    return Profile("wool 1 B Q4_K", "some processor", 10.0, 100, "Q4_K", 1e9, 2e9, 64, 1e9, situation)


@pytest.mark.parametrize("width", [45, 60, 80, 100])
def test_why_shows_as_many_runs_side_by_side_as_fit(width):
    lines = _screen(examination(), width)
    assert max(map(len, lines)) <= width
    assert sum("time  bound by" in line for line in lines) == {45: 3, 60: 3, 80: 2, 100: 1}[width]
    text = " ".join(" ".join(lines).split())
    assert "What would help most: stop other programs on this machine (2.00x)" in text


def test_why_uses_the_singular_for_one():
    text = " ".join(" ".join(_screen(examination(), 100)).split())
    assert "1 of 1 core, kernels" in text
    assert "1 answer, tg32" in text
    assert "other programs took 50% of the time of 1 thread, so" in text
    assert not re.search(r"\b1 (threads|cores|answers|rows|tokens|requests|sequences)\b", text)


def test_plan_is_truncated_on_a_terminal_and_complete_in_a_pipe(model, monkeypatch):
    whole = woolly("plan", model)
    monkeypatch.setattr(plan_command, "stdout_console", lambda: terminal(40))
    cut = woolly("plan", model)
    assert len(cut.splitlines()) == len(whole.splitlines())
    for short, line in zip(cut.splitlines(), whole.splitlines(), strict=True):
        assert short == (line if len(line) <= 40 else f"{line[:39]}…")


@pytest.mark.parametrize(("width", "columns"), [(60, 5), (100, 8)])
def test_bench_table_keeps_its_first_column_on_a_narrow_terminal(model, monkeypatch, width, columns):
    kept = []
    monkeypatch.setattr("woolly.cli.commands.bench.write", lambda records, form, console: kept.extend(records))
    woolly("bench", model, "-p", "4", "-n", "2", "-r", "1")
    console = terminal(width)
    write(kept, "table", console)
    lines = seen(console).splitlines()
    assert max(map(len, lines)) <= width or str(kept[0].model_filename) in lines[0]
    head = next(line for line in lines if line.startswith("test "))
    assert len(re.split(r"\s{2,}", head.strip())) == columns
    assert any(line.startswith("pp4 ") for line in lines)
    assert any("of 1 repetition" in line and "repetitions" not in line for line in lines)


def test_singulars_of_the_other_commands(model, tmp_path, monkeypatch):
    (tmp_path / "text").write_text("wool " * 40)
    reported = []
    monkeypatch.setattr("click.echo", lambda text="", **_: reported.append(str(text)))
    woolly("perplexity", model, tmp_path / "text", "--ctx", "8", "-n", "1")
    woolly("tokenize", model, "5", "--no-special", "-d")
    woolly("tokenize", model, "w", "--no-special")
    assert any(line.startswith("1 window of 8 tokens") for line in reported)
    assert reported[-1] == "1 token"


def test_names_are_completed(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WOOLLY_HOME", str(tmp_path))
    folder = Path(tmp_path, "models")
    folder.mkdir()
    for name in ("wool.gguf", "two words.gguf"):
        (folder / name).touch()
    assert complete_model("") == ["smollm2", "wool"]
    assert complete_model("wo") == ["wool"]
