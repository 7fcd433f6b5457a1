"""A command is one file and one line: the file of docs/make/add-a-command.md is put in place, and works."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from docs.tools.cli import reference
from tests.cases.tiny import TINY, write_tiny
from tests.cli.terminal import woolly
from tests.docs.blocks import blocks_of
from woolly.cli import commands
from woolly.cli.app import COMMANDS, app
from woolly.cli.parse.usage_errors import UsageError


@pytest.fixture
def hello(tmp_path, monkeypatch):
    (block,) = (b for b in blocks_of("docs/make/add-a-command.md") if b.language == "python")
    (tmp_path / "hello.py").write_text(block.text)
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(tmp_path)])
    monkeypatch.setitem(COMMANDS, "hello", "Say hello.")
    yield
    sys.modules.pop("woolly.cli.commands.hello", None)


def test_one_file_and_one_line_add_a_command(hello):
    assert "\n  hello       Say hello.\n" in woolly("--help")
    assert woolly("hello") == "Hello, world!\n"
    assert woolly("hello", "Ole", "-n", "2") == "Hello, Ole!\n" * 2
    page = reference()
    assert "| [`hello`](#woolly-hello) | Greet somebody. |" in page
    assert "woolly hello [OPTIONS] [NAME]" in page
    assert "| `--times` `-n` | How often. Default: 1. |" in page
    for line, reported in {
        "helo": "did you mean hello?",
        "hello --time 3": "unknown option --time of woolly hello: did you mean --times?",
        "hello -n x": "-n is 'x'; expected an integer",
        "hello a b": "unexpected argument 'b': woolly hello [OPTIONS] [NAME]",
    }.items():
        with pytest.raises(UsageError) as error:
            woolly(*line.split())
        assert reported in str(error.value)


def test_tab_completes_commands_options_and_models(hello, tmp_path, monkeypatch):
    monkeypatch.setenv("WOOLLY_HOME", str(tmp_path))

    def completed(line):
        words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1), "_WOOLLY_COMPLETE": "bash_complete"}
        return CliRunner().invoke(app, [], env=words).output.split()

    assert completed("woolly he") == ["plain,hello"]
    assert completed("woolly hello --ti") == ["plain,--times"]
    assert completed("woolly run -ngl 99 --nope --see") == ["plain,--seed"]
    assert completed("woolly plan smo") == ["file,smo", "plain,smollm2"]
    (tmp_path / "models").mkdir()
    write_tiny(TINY["granite"], tmp_path / "models" / "mine:1b.gguf")
    assert completed("woolly serve -m mi") == completed("woolly run mi") == ["file,mi", "plain,mine:1b"]
    # bash ends a word at a colon, and replaces what is behind it
    assert completed("woolly serve -m mine :") == ["file,mine:", "plain,1b"]
    assert completed("woolly serve -m mine : 1") == ["file,mine:1", "plain,1b"]
    assert "plain,0.6b" in completed("woolly run qwen3 : 0")  # `run` fetches
    assert completed("woolly serve -m qwe") == ["file,qwe"]


@pytest.mark.parametrize(("shell", "loads"), [("bash", ".bashrc"), ("zsh", ".zshrc"), ("fish", None)])
def test_completion_is_installed_once(shell, loads, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", f"/bin/{shell}")
    if loads:
        (tmp_path / loads).write_bytes(b"alias a=b # \xe9\n")
    for _ in range(2):
        assert f"{shell} completion is in {tmp_path}" in woolly("--install-completion")
    if loads:
        lines = (tmp_path / loads).read_bytes().splitlines()
        assert lines[0] == b"alias a=b # \xe9" and sum(line.startswith(b"source ") for line in lines) == 1
    assert "_WOOLLY_COMPLETE" in woolly("--show-completion")
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    with pytest.raises(UsageError, match="completion supports bash, fish and zsh"):
        woolly("--install-completion")


@pytest.mark.parametrize("command", [[], ["run"], ["chat"], ["serve"], ["bench"]], ids=" ".join)
def test_help_imports_only_what_it_shows(command):
    script = f"import sys; from woolly.cli.app import app; app({[*command, '--help']}, standalone_mode=False)"
    script += "; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "fastapi", "pydantic", "jinja2", "tokenizers", "woolly.llm.llm"} & set(loaded)
    assert command or not {"rich", "woolly.store", "woolly.cli.commands.run"} & set(loaded)
