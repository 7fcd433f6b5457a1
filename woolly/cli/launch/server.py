"""Server for `woolly launch`: a running server, or one that is started and stopped."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from woolly.cli.commands.ps import ask, models_of
from woolly.cli.parse.usage_errors import closest
from woolly.cli.terminal.progress import print_status
from woolly.errors import RequestError

_ENDING = 40.0  # seconds to stop a server, including running answers
_LOADING = 1800.0  # seconds to load a model, as for replicas of `woolly serve`
_LOCAL = ("127.0.0.1", "localhost")
_LOOK = "look at its log, or take a smaller model"


def is_running(url: str, key: str | None) -> bool:
    """True if a server answers at an address. Waits while it loads a model.

    Raises RequestError if it rejects the key or is not a Woolly server.
    """
    parts = urlsplit(url)
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 80), timeout=2):
            pass
    except OSError:
        if parts.hostname not in _LOCAL:
            raise RequestError(f"no server answers at {url}; servers can only be started on this machine") from None
        return False
    models_of(url, key)
    if _health(url) == "loading":
        print_status(f"woolly: waiting for the server at {url}, which loads its model ...", dim=True)
    until = time.monotonic() + _LOADING
    while _health(url) == "loading":
        if time.monotonic() > until:
            raise RequestError(f"the server at {url} still loads its model after {_LOADING / 60:.0f} minutes: {_LOOK}")
        time.sleep(0.2)
    return True


def find_model(url: str, key: str | None, name: str | None) -> dict[str, Any]:
    """Return the server's entry of a text-generation model: by name, else the loaded model, else the only model."""
    runnable = [model for model in models_of(url, key) if not model.get("unsupported")]
    usable = [model for model in runnable if "completion" in model["capabilities"]]
    if name is not None:
        stem = Path(name).name.removesuffix(".gguf")
        for model in runnable:
            if {name, stem, f"{stem}.gguf"} & {model["name"], *model.get("aliases", ())}:
                if model not in usable:
                    raise wrong_model_error(name)
                return model
        known = [str(model["name"]) for model in usable]
        hint = closest(name, known) or f"it has {', '.join(known) or 'none'}"
        raise RequestError(
            f"the server at {url} has no model {name!r}: {hint}; a different --url starts a server for it"
        )
    chosen = [model for model in usable if model.get("loaded")] or usable
    if len(chosen) != 1:
        listed = ", ".join(str(model["name"]) for model in chosen)
        raise RequestError(f"choose a model of the server at {url} with -m: {listed or 'it has no chat model'}")
    return chosen[0]


def wrong_model_error(name: str) -> RequestError:
    """Return the error for a model that agents cannot use."""
    return RequestError(
        f"{name} embeds, ranks or transcribes and cannot chat: an agent needs a chat model, such as qwen3:8b",
        code="wrong_model",
    )


def serve_command(model: str, url: str, ctx: int | None, cache_disk: str | None = None) -> list[str]:
    """Return the command that serves a model at an address. `cache_disk` limits the prompt cache on disk."""
    parts = urlsplit(url)
    command = [sys.executable, "-m", "woolly", "serve", "-m", model]
    command += ["--host", parts.hostname or "127.0.0.1", "--port", str(parts.port or 80)]
    command += [] if ctx is None else ["--ctx-size", str(ctx)]
    return command if cache_disk is None else [*command, "--cache-disk", cache_disk]


@contextmanager
def start_server(command: Sequence[str], url: str, log: Path, key: str | None) -> Iterator[None]:
    """Run a server while the block runs. RequestError has the last line of its log if it does not start."""
    environment = {**os.environ, **({"WOOLLY_API_KEY": key} if key else {})}
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
            # Only the agent gets Ctrl-C. Windows sends it to a process group, other systems to a session.
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
    try:
        print_status(f"woolly: starting a server at {url}, which loads the model ...", dim=True)
        until = time.monotonic() + _LOADING
        while _health(url) != "ok":
            if time.monotonic() > until:
                raise RequestError(f"the server has not loaded the model after {_LOADING / 60:.0f} minutes: {_LOOK}")
            if process.poll() is not None:
                lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
                reason = lines[-1] if lines else f"exit code {process.returncode}"
                raise RequestError(f"the server does not start ({shlex.join(command[1:])}): {reason}")
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        try:
            process.wait(_ENDING)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _health(url: str) -> str:
    """Return ok, loading, draining or failed; empty if no server answers."""
    try:
        return str(ask(f"{url}/api/v1/health", None, seconds=5)["status"])
    except (RequestError, KeyError, TypeError):
        return ""
