"""`woolly launch`: starts a coding agent with a local model."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import click

from woolly.cli.commands.ps import API_KEY, API_KEY_FILE, URL, server_at
from woolly.cli.first_run.state_file import default_model
from woolly.cli.launch.agents import AGENTS, Agent, Endpoint, Setup
from woolly.cli.parse.command import command
from woolly.cli.parse.options import complete_fetched
from woolly.cli.parse.parameter import Argument, Option
from woolly.cli.parse.usage_errors import UsageError, closest
from woolly.cli.terminal.progress import print_status
from woolly.errors import RequestError
from woolly.store import DEFAULT_MODEL, models_folder

_CTX = 32_768  # context of a started server, if the model's maximum is not smaller
_CACHE_DISK = "20GB"  # prompt cache of a started server: the agent's system prompt is computed only once
_ROOM = 2_048  # tokens for a question and an answer after the agent's first turn
_ENDS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
_GRACE = 10.0  # seconds that an agent has to exit after a signal
_SMALL = 3_000_000_000  # smaller models seldom call tools well


@command(
    Argument(
        "words",
        "AGENT [ARGUMENTS]",
        f"One of {', '.join(AGENTS)}, and after -- what it is given, such as: -- -p 'Explain this folder'.",
        list,
        complete=lambda word: [name for name in AGENTS if name.startswith(word)],
    ),
    Option(
        "--model -m",
        "Model of the running server, or the one to serve.",
        complete=complete_fetched,
        shown=f"the loaded one, else {DEFAULT_MODEL}",
    ),
    Option("--ctx -c", "Context in tokens, if a server is started.", int, shown=f"the model's, at most {_CTX}"),
    Option(
        "--cache-disk",
        "Maximum size of the prompt cache on disk, if a server is started; none: no cache.",
        shown=_CACHE_DISK,
    ),
    URL,
    API_KEY,
    API_KEY_FILE,
    Option("--dry-run --print", "Print the settings and the command, but start nothing.", bool, default=False),
)
def launch(
    words: tuple[str, ...],
    model: str | None,
    ctx: int | None,
    cache_disk: str | None,
    url: str,
    api_key: str | None,
    api_key_file: Path | None,
    dry_run: bool,
) -> None:
    """Start a coding agent with a local model, for instance: woolly launch claude -m qwen3:8b.

    If no server answers at --url, one is started, and stopped when the agent exits. The agent's own settings are not
    changed: environment variables, arguments and temporary files configure it.
    """
    agent = _find(words)
    program = shutil.which(agent.program)
    if program is None and not dry_run:
        raise RequestError(f"{agent.program} is not installed: {agent.install}")
    url, key = server_at(url, api_key, api_key_file)
    with ExitStack() as stack:
        stack.enter_context(_ended_by_signals())
        if dry_run:
            folder = Path(tempfile.gettempdir(), "woolly-launch")  # printed, but not created
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="woolly-launch-")))
        endpoint = _endpoint(stack, folder, agent, url, key, model, ctx, cache_disk, dry_run)
        setup = agent.set_up(endpoint, folder / "agent")
        line = [program or agent.program, *setup.arguments, *words[1:]]
        if dry_run:
            _print(setup, line, endpoint)
            return
        for path, text in setup.files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        code = _run(line, setup)
    raise click.exceptions.Exit(code)


def _find(words: tuple[str, ...]) -> Agent:
    if not words:
        raise UsageError(f"missing agent; expected one of {', '.join(AGENTS)}")
    if words[0] not in AGENTS:
        raise UsageError(
            f"unknown agent {words[0]!r}: {closest(words[0], AGENTS) or 'expected one of ' + ', '.join(AGENTS)}"
        )
    return AGENTS[words[0]]


def _endpoint(
    stack: ExitStack,
    folder: Path,
    agent: Agent,
    url: str,
    key: str | None,
    name: str | None,
    ctx: int | None,
    cache_disk: str | None,
    dry_run: bool,
) -> Endpoint:
    """Return the server and the model, after warnings. A started server runs as long as `stack`."""
    from woolly.cli.launch.server import find_model, is_running, serve_command, start_server

    if is_running(url, key):
        if ctx is not None:
            raise RequestError(
                f"ctx is {ctx}, but the server at {url} is already running with its own context", field="ctx"
            )
        if cache_disk is not None:
            raise RequestError(
                f"cache_disk is {cache_disk}, but the server at {url} is already running with its own settings",
                field="cache_disk",
            )
    else:
        path, own, n_parameters = _local(name or default_model(), may_fetch=not dry_run)
        if ctx is not None and ctx > own:
            print_status(
                f"woolly: --ctx is {ctx}, but {path.stem} was trained for {own} tokens: answers beyond them get worse"
            )
        ctx = ctx or min(own, _CTX)
        kept = cache_disk or _CACHE_DISK
        command = serve_command(str(path), url, ctx, None if kept == "none" else kept)
        if dry_run:
            print_status(f"woolly: no server answers at {url}; the first line would start one until the agent ends")
            click.echo(shlex.join(["woolly", *command[3:]]) + " &")
            _warn(agent, ctx, n_parameters)
            return Endpoint(url, _served_name(path), ctx, key)
        stack.enter_context(start_server(command, url, folder / "server.log", key))
        name = None
    found = find_model(url, key, name)
    _warn(agent, found["context_length"], found["parameters"])
    return Endpoint(url, str(found["name"]), int(found["context_length"]), key)


def _local(name: str, *, may_fetch: bool) -> tuple[Path, int, int]:
    """Return the file, context and parameters of a local model, which is downloaded if it is in the catalogue.

    RequestError for a model that does not generate text.
    """
    from woolly.cli.commands.pull import fetched
    from woolly.cli.launch.server import wrong_model_error
    from woolly.gguf import open_gguf
    from woolly.models import trace
    from woolly.store import resolve

    path = resolve(fetched(name) if may_fetch else name)
    with open_gguf(path) as file:
        plan = trace(file)
        if plan.result != "logits" or plan.transcribes:
            raise wrong_model_error(name)
        ctx = file.metadata.get(f"{plan.architecture}.context_length")
        n_parameters = sum(tensor.n_elements for tensor in file.tensors.values())
    return path, ctx if isinstance(ctx, int) else _CTX, n_parameters


def _served_name(path: Path) -> str:
    """Return the name that a server uses for the model of --model."""
    from woolly.serving.model_manager.catalog import ModelCatalog

    return str(ModelCatalog(models_folder(), str(path)).main)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Turn termination signals into exceptions, so that a started server is stopped, too."""

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    with _handling(dict.fromkeys(_ENDS, end)):
        yield


@contextmanager
def _handling(handlers: Mapping[int, Any]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _warn(agent: Agent, ctx: int, n_parameters: int) -> None:
    if ctx < agent.first_turn + _ROOM:
        enough = 2 * agent.first_turn // 1024 * 1024 + 4096
        print_status(
            f"woolly: {agent.program} sends about {agent.first_turn:,} tokens before your first word, but the context"
            f" holds {ctx:,}, which is too small: use a model and a --ctx of at least {enough:,}"
        )
    if n_parameters < _SMALL:
        print_status(
            f"woolly: a model of {n_parameters / 1e9:.1f} billion parameters seldom calls tools well;"
            " 7 billion or more are advised"
        )


def _print(setup: Setup, line: list[str], endpoint: Endpoint) -> None:
    for name in setup.without:
        click.echo(f"unset {name}")
    for name, value in setup.environment.items():
        click.echo(f"export {name}={shlex.quote(_masked(value, endpoint.key))}")
    for path, text in setup.files.items():
        click.echo(f"mkdir -p {shlex.quote(str(path.parent))}")
        click.echo(f"cat > {shlex.quote(str(path))} <<'END'\n{_masked(text, endpoint.key)}\nEND")
    click.echo(shlex.join(line))


def _masked(text: str, key: str | None) -> str:
    """Return a text without the key, also as escaped in JSON."""
    if not key:
        return text
    return text.replace(json.dumps(key)[1:-1], "...").replace(key, "...")


def _run(line: list[str], setup: Setup) -> int:
    """Run the agent and return its exit code. Ctrl-C goes to the agent; termination signals are forwarded.

    An agent that does not exit within `_GRACE` seconds is killed, because it would keep running without its server.
    """
    environment = {name: value for name, value in os.environ.items() if name not in setup.without}
    # At a terminal, the agent must stay in the group that owns the terminal. Otherwise it gets a separate group, so
    # that signals also reach its child processes.
    is_alone = hasattr(os, "killpg") and not (sys.stdin is not None and sys.stdin.isatty())
    process = subprocess.Popen(line, env={**environment, **setup.environment}, start_new_session=is_alone)

    def send(number: int) -> None:
        with suppress(ProcessLookupError):
            if sys.platform != "win32" and is_alone:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)

    kill = threading.Timer(_GRACE, send, [getattr(signal, "SIGKILL", signal.SIGTERM)])
    kill.daemon = True

    def end(number: int, _: FrameType | None) -> None:
        send(number)
        if number in _ENDS and kill.ident is None:  # the timer can only be started once
            kill.start()

    try:
        with _handling({**dict.fromkeys(_ENDS, end), signal.SIGINT: end if is_alone else signal.SIG_IGN}):
            code = process.wait()
    finally:
        kill.cancel()
        if is_alone and kill.ident is not None:
            send(getattr(signal, "SIGKILL", signal.SIGTERM))  # processes that the agent has left running
    return code if code >= 0 else 128 - code
