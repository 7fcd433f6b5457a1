"""Tries the server of an installed Woolly: starts it with a tiny model, asks one question, ends it.

    python tests/packaging/serve.py

Run from outside the checkout by the Python that has the wheel, as smoke.py is.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from smoke import tiny_models

SECONDS = 60.0


def ask(url: str, body: dict[str, object] | None = None) -> dict[str, object]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=SECONDS) as reply:
        answer: dict[str, object] = json.load(reply)
        return answer


def wait(url: str, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        try:
            if ask(f"{url}/api/v1/health")["status"] == "ok":
                return
        except (OSError, urllib.error.URLError):
            if server.poll() is not None:
                sys.exit(f"the server ended with {server.returncode}")
        time.sleep(0.1)
    sys.exit(f"the server did not start within {SECONDS:g} seconds")


def main() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = tiny_models(Path(folder))[0]
        command = [sys.executable, "-m", "woolly", "serve", "-m", str(path), "--port", str(port)]
        server = subprocess.Popen(command, env={**os.environ, "WOOLLY_HOME": folder}, cwd=folder)
        try:
            wait(f"http://127.0.0.1:{port}", server)
            body = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
            answer = ask(f"http://127.0.0.1:{port}/v1/completions", body)
            print(json.dumps(answer))
            if answer["usage"]["completion_tokens"] != 8:  # type: ignore[index]
                sys.exit("the answer does not have its 8 tokens")
        finally:
            server.terminate()
            server.wait(SECONDS)


if __name__ == "__main__":
    main()
