import io

import pytest
from click.testing import CliRunner
from rich.console import Console

from woolly import store
from woolly.cli.commands.pull import pull, pull_with_progress


@pytest.fixture
def store_pull(monkeypatch, tmp_path):
    """A store that reports three steps of progress."""

    def fake(name, *, sha256=None, progress=None, with_projector=True, with_draft=False):
        for done in (0, 500_000, 1_000_000):
            if progress is not None:
                progress(done, 1_000_000)
        return tmp_path / f"{name}.gguf"

    monkeypatch.setattr(store, "pull", fake)


def test_pull_prints_the_path_on_stdout_and_one_line_on_stderr(store_pull, tmp_path):
    result = CliRunner().invoke(pull, [])
    assert result.exit_code == 0
    assert result.stdout == f"{tmp_path / 'smollm2.gguf'}\n"
    assert result.stderr == "woolly: smollm2 is not on this machine; downloading 98 MB\n"


def test_terminal_shows_the_bytes(store_pull, tmp_path):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    assert pull_with_progress("smollm2", console) == tmp_path / "smollm2.gguf"
    assert "fetching smollm2" in screen.getvalue()
    assert "1.0/1.0 MB" in screen.getvalue()


def test_local_model_draws_no_progress_bar(monkeypatch, tmp_path):
    monkeypatch.setattr(store, "pull", lambda name, sha256, progress, with_projector, with_draft: tmp_path)
    screen = io.StringIO()
    assert pull_with_progress("smollm2", Console(file=screen, force_terminal=True)) == tmp_path
    assert screen.getvalue() == ""


def test_projector_file_is_named_with_its_size(store_pull, tmp_path):
    (tmp_path / "mmproj-smollm2-F16.gguf").write_bytes(bytes(3_000_000))
    assert (
        CliRunner()
        .invoke(pull, [])
        .stderr.endswith("woolly: projector for image input: mmproj-smollm2-F16.gguf, 3 MB\n")
    )
    assert "projector" not in CliRunner().invoke(pull, ["--no-mmproj"]).stderr
    said = CliRunner().invoke(pull, ["--draft"]).stderr
    assert said.endswith("woolly: no mtp-NAME.gguf or dflash-NAME.gguf is there for it\n")
    (tmp_path / "mtp-smollm2.gguf").write_bytes(b"")
    assert CliRunner().invoke(pull, ["--draft"]).stderr.endswith("woolly: mtp-smollm2.gguf guesses its tokens\n")
