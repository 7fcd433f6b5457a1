"""`woolly launch`: what agents are given, by a stand-in that records it, and the server that is started for them."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.cases.texts import write_readers
from tests.cases.tiny import TINY, write_tiny
from tests.serving.pages.conftest import served
from woolly.cli.app import app
from woolly.cli.launch import server
from woolly.cli.launch.agents import AGENTS
from woolly.errors import RequestError
from woolly.serving import Settings, create_app

# Writes down its arguments, its environment and the files that it was given, and asks the server for its models.
RECORDER = """#!{python}
import json, os, pathlib, sys, urllib.request
files = dict()
for word in sys.argv[1:]:
    path = pathlib.Path(word)
    for file in [path] if path.is_file() else path.rglob("*") if path.is_dir() else []:
        if file.is_file():
            files[str(file)] = file.read_text()
with urllib.request.urlopen(os.environ["ASK"]) as reply:
    models = json.load(reply)
record = dict(arguments=sys.argv[1:], environment=dict(os.environ), files=files, models=models)
pathlib.Path(os.environ["RECORD"]).write_text(json.dumps(record))
sys.exit(7)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny(replace(TINY["llama"], context=4096), tmp_path_factory.mktemp("launch") / "tiny.gguf")


@pytest.fixture(scope="module")
def url(model):
    write_readers(model.parent, "embedder")  # no model for an agent
    settings = Settings(models_dir=model.parent, sessions_file=model.with_name("s.db"), threads=1)
    with served(create_app(settings)) as url:
        yield url


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Runs `woolly launch` with stand-ins for all agents; gives the result and what the agent saw."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for agent in AGENTS.values():
        (folder / agent.program).write_text(RECORDER.format(python=sys.executable))
        (folder / agent.program).chmod(0o755)
    record = tmp_path / "record.json"
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("RECORD", str(record))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-of-another")
    monkeypatch.delenv("WOOLLY_API_KEY", raising=False)
    monkeypatch.setenv("WOOLLY_HOME", str(tmp_path / "home"))  # for the pages of a server that is started

    def start(*arguments, url):
        monkeypatch.setenv("ASK", f"{url}/v1/models")
        result = CliRunner().invoke(app, ["launch", "--url", url, *map(str, arguments)])
        return result, json.loads(record.read_text()) if record.exists() else None

    return start


def test_every_agent_gets_address_model_and_context(start, url):
    seen = {}
    for name in AGENTS:
        result, record = start(name, url=url)
        assert result.exit_code == 7, result.output  # the agent's own
        assert (
            "which is too small: use a model and a --ctx" in result.stderr if AGENTS[name].first_turn > 2048 else True
        )
        assert "seldom calls tools well" in result.stderr
        given = json.dumps([record["arguments"], record["environment"], record["files"]])
        assert url in given
        assert "tiny" in given
        seen[name] = record
    claude = seen["claude"]["environment"]
    assert claude["ANTHROPIC_BASE_URL"] == url  # without /v1
    assert "ANTHROPIC_API_KEY" not in claude
    assert {v for k, v in claude.items() if k.startswith("ANTHROPIC_") and k.endswith("_MODEL")} == {"tiny"}
    assert claude["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == claude["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "4096"
    codex = seen["codex"]["arguments"]
    assert f'model_providers.woolly.base_url="{url}/v1"' in codex
    assert 'model_providers.woolly.wire_api="responses"' in codex
    assert "model_context_window=4096" in codex
    opencode = json.loads(seen["opencode"]["environment"]["OPENCODE_CONFIG_CONTENT"])
    assert opencode["model"] == "woolly/tiny"
    assert opencode["provider"]["woolly"]["models"]["tiny"]["limit"] == {"context": 4096, "output": 1024}
    assert seen["qwen"]["environment"]["OPENAI_BASE_URL"] == f"{url}/v1"
    assert seen["copilot"]["environment"]["COPILOT_PROVIDER_WIRE_API"] == "responses"
    for name in ("cline", "continue"):
        (path,) = seen[name]["files"]
        assert not Path(path).exists()  # removed with the end of the agent
        assert url in seen[name]["files"][path]


def test_arguments_after_two_dashes_go_to_the_agent(start, url):
    _, record = start("continue", "--", "-p", "Say hi", "--auto", url=url)
    assert record["arguments"][-3:] == ["-p", "Say hi", "--auto"]


def test_server_is_started_and_stopped(start, model):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    result, record = start("qwen", "-m", model, "-c", "1024", url=url)
    assert result.exit_code == 7, result.output
    assert record["environment"]["OPENAI_MODEL"] == "tiny"
    assert [one["id"] for one in record["models"]["data"] if one["id"] == "tiny"]
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        pass


def test_dry_run_prints_everything_and_starts_nothing(start, url, model, monkeypatch):
    result, record = start("cline", "--dry-run", "--api-key", "sesame", url=url)
    assert result.exit_code == 0, result.output
    assert record is None
    assert "providers.json" in result.stdout
    assert "sesame" not in result.stdout
    assert result.stdout.splitlines()[-1].split()[0].endswith("cline")
    result, record = start("claude", "--print", "-m", model, url="http://127.0.0.1:9")
    assert record is None
    assert f"woolly serve -m {model} --host 127.0.0.1 --port 9 --ctx-size 4096 --cache-disk 20GB &" in result.stdout
    assert "export ANTHROPIC_MODEL=tiny" in result.stdout
    result, _ = start("claude", "--print", "-m", model, "--cache-disk", "none", url="http://127.0.0.1:9")
    assert "--cache-disk" not in result.stdout
    result, _ = start("claude", "--print", "--cache-disk", "1GB", url=url)
    assert "--cache-disk is 1GB, but the server at" in str(result.exception)
    result, _ = start("claude", "--print", "-m", model, url="http://127.0.0.1:9")
    assert "export ANTHROPIC_BASE_URL=http://127.0.0.1:9" in result.stdout


def test_dry_run_prints_runnable_shell_lines_and_leaves_no_folder(start, url, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    before = sorted(tmp_path.iterdir())
    result, _ = start("cline", "--dry-run", url=url)
    assert sorted(tmp_path.iterdir()) == before
    *lines, last = result.stdout.splitlines()
    subprocess.run(["sh", "-e"], input="\n".join(lines), text=True, check=True, cwd=tmp_path)
    folder = Path(last.split()[last.split().index("--data-dir") + 1])
    assert url in (folder / "settings" / "providers.json").read_text()


def test_larger_context_is_accepted_and_an_embedding_model_is_not(start, model, url):
    result, _ = start("claude", "--dry-run", "-m", model, "-c", "9000", url="http://127.0.0.1:9")
    assert "--ctx-size 9000" in result.stdout
    assert "--ctx is 9000, but tiny was trained for 4096 tokens" in result.stderr
    result, _ = start("claude", "--dry-run", "-m", model.with_name("embedder.gguf"), url="http://127.0.0.1:9")
    assert "cannot chat: an agent needs a chat model" in str(result.exception)


@pytest.mark.parametrize("key", ["sesame", 'se"sa\\me'])
def test_dry_run_prints_no_key(start, url, key):
    for name in AGENTS:
        result, _ = start(name, "--dry-run", "--api-key", key, url=url)
        assert result.exit_code == 0, result.output
        assert "..." in result.stdout
        assert key not in result.stdout
        assert json.dumps(key)[1:-1] not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "missing agent; expected one of claude, codex"),
        (["claud"], "did you mean claude?"),
        (["claude", "-m", "nonesuch"], "has no model 'nonesuch': it has tiny"),
        (["claude", "-c", "100"], "is already running with its own context"),
        (
            ["claude", "-m", "embedder"],
            "embedder embeds, ranks or transcribes and cannot chat: an agent needs a chat model",
        ),
    ],
)
def test_errors_are_one_line(start, url, arguments, expected):
    result, record = start(*arguments, url=url)
    assert expected in str(result.exception)
    assert record is None


def test_missing_agent_error_has_its_install_command(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    result = CliRunner().invoke(app, ["launch", "claude"])
    assert isinstance(result.exception, RequestError)
    assert str(result.exception) == "claude is not installed: npm install -g @anthropic-ai/claude-code"


def test_server_that_fails_to_start_says_why(start, tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"nonsense")
    result, record = start("claude", "-m", broken, url="http://127.0.0.1:9")
    assert record is None
    assert "broken.gguf" in str(result.exception)
    result, _ = start("claude", url="http://192.0.2.1:9")
    assert "can only be started on this machine" in str(result.exception)


def test_loading_server_is_waited_for_with_a_message_and_a_limit(monkeypatch, url, capsys):
    states = iter(["loading", "loading", "loading", "ok"])
    monkeypatch.setattr(server, "_health", lambda _: next(states))
    assert server.is_running(url, None)
    reported = f"woolly: waiting for the server at {url}, which loads its model ...\n"
    assert capsys.readouterr().err == reported
    monkeypatch.setattr(server, "_health", lambda _: "loading")
    monkeypatch.setattr(server, "_LOADING", 0.0)
    with pytest.raises(RequestError, match="still loads its model after 0 minutes: look at its log"):
        server.is_running(url, None)


# Ignores requests to end, and has a program of its own beside it.
STUBBORN = """#!{python}
import os, pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path(os.environ["RECORD"]).write_text(f"{{os.getpid()}} {{child.pid}}")
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
def test_sigterm_ends_the_agent_and_removes_its_folder(url, tmp_path):
    program, record, temporary = tmp_path / "cline", tmp_path / "record", tmp_path / "temporary"
    program.write_text(STUBBORN.format(python=sys.executable))
    program.chmod(0o755)
    temporary.mkdir()
    script = (
        "import sys; from woolly.cli.commands import launch; launch._GRACE = 0.1; from woolly.cli import main; main()"
    )
    environment = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "RECORD": str(record),
        "TMPDIR": str(temporary),
    }
    command = [sys.executable, "-c", script, "launch", "cline", "--url", url]
    process = subprocess.Popen(command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL)
    try:
        while not record.exists() or len(record.read_text().split()) < 2:
            assert process.poll() is None
            time.sleep(0.05)
        assert list(temporary.iterdir())
        process.terminate()
        assert process.wait(120) == 128 + signal.SIGKILL
    finally:
        process.kill()
    assert not list(temporary.iterdir())
    for pid in map(int, record.read_text().split()):
        assert not _is_running(pid)


def _is_running(pid):
    """True if the process runs; a zombie (Z) does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().split()[2] not in "ZX"
    except (ProcessLookupError, FileNotFoundError):
        return False
