"""Exit codes of bad command lines. They depend on the class and the field of an error, never on its sentence."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases.errors import drop_sentences
from woolly.cli.app import main
from woolly.machine.optional_packages import install_command

LINES = {
    "run MODEL x --top-p -1": 2,
    "run MODEL x --temp -1": 2,
    "run MODEL x --samplers top_q": 2,
    "run MODEL x --mirostat-lr 1": 2,
    "run MODEL x --logit-bias 99999+1": 2,
    "run MODEL x -n 0": 2,
    "run MODEL x --ctx 1": 1,
    "run MODEL x --threads 0": 2,
    "run MODEL x --kv-type q9": 2,
    "run MODEL x --backend gpu": 2,
    "run MODEL x --weight-memory much": 2,
    "run MODEL x -n -5": 2,
    "run MODEL x --grammar NONE": 1,
    'run MODEL x --grammar root::="a': 2,
    "run MODEL x --json-schema {type:1}": 2,
    'run MODEL x --json-schema {"type":"foo"}': 2,
    "run MODEL x --json-schema NONE": 1,
    "run MODEL x --json-schema MODEL": 1,
    "quantize MODEL OUT Q9": 2,
    "quantize MODEL OUT Q8_0 --output-tensor-type Q9": 2,
    "pull EMPTY": 2,
    "run NONE x": 1,
    "run MODEL x --seeed 1": 2,
    "show MODEL --ctx 0": 2,
    "perplexity MODEL MODEL": 1,
    "why MODEL -p 100000": 2,
    "why MODEL --threads 0": 2,
    "tokenize MODEL --decode 99999": 2,
    "fly": 2,
}


@pytest.fixture
def nothing():
    with Path(os.devnull).open() as file:
        yield file


@pytest.mark.parametrize("sentences", [True, False])
@pytest.mark.parametrize("line", LINES)
def test_exit_code_tells_user_error_from_internal_error(line, sentences, tiny_model, nothing, monkeypatch, capsys):
    if not sentences:
        drop_sentences(monkeypatch)
    words = {"MODEL": str(tiny_model), "NONE": str(tiny_model.with_name("none.gguf")), "EMPTY": ""}
    monkeypatch.setattr("sys.argv", ["woolly", *(words.get(word, word) for word in line.split())])
    monkeypatch.setattr("sys.stdin", nothing)
    with pytest.raises(SystemExit) as ended:
        main()
    reported = capsys.readouterr().err
    assert ended.value.code == LINES[line], reported
    assert reported.startswith("woolly: error: x\n") is not sentences


@pytest.mark.parametrize("line", ["serve -m MODEL --port 0 --mcp FILE", "chat MODEL --mcp FILE --mcp-approve all"])
def test_missing_package_gives_a_one_line_error_before_anything_starts(
    line, tiny_model, tmp_path, nothing, monkeypatch, capsys
):
    file = tmp_path / "mcp.json"
    file.write_text('{"mcpServers": {}}')
    words = {"MODEL": str(tiny_model), "FILE": str(file)}
    monkeypatch.setattr("woolly.mcp.optional_package.find_spec", lambda name: None)
    monkeypatch.setattr("sys.argv", ["woolly", *(words.get(word, word) for word in line.split())])
    monkeypatch.setattr("sys.stdin", nothing)
    with pytest.raises(SystemExit) as ended:
        main()
    (reported,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 1
    assert reported == f"woolly: error: MCP needs the package mcp: {install_command('mcp')}"


@pytest.mark.parametrize(("module", "code"), [("click", -signal.SIGINT), ("woolly.cli.commands.run", 130)])
def test_ctrl_c_during_imports_prints_nothing(module, code):
    find = f"lambda name, *_: os.kill(os.getpid(), signal.SIGINT) if name == '{module}' else None"
    program = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
        f" sys.meta_path.insert(0, type('Finder', (), {{'find_spec': staticmethod({find})}}));"
        " from woolly.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program, "run", "-h"], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (code, b"", b"")
