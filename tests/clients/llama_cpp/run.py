"""Runs llama.cpp's tests of its server against `woolly serve`, and prints how each group of them ended."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.clients.llama_cpp.encoders import write_encoders
from tests.clients.llama_cpp.fork_server import start_fork_server
from tests.clients.llama_cpp.models import write_models

_ROOT = Path(__file__).resolve().parents[3]


def main() -> int:
    """Returns 1 if a case failed that is not among the known ones."""
    parser = argparse.ArgumentParser(prog="scripts/llama-tests", description=__doc__)
    parser.add_argument("checkout", type=Path, help="a checkout of llama.cpp: tools/server/tests and models/templates")
    parser.add_argument("--stories", type=Path, help="a folder with stories260K.bin and tok512.bin")
    parser.add_argument("--results", type=Path, help="a file for one line of JSON per case")
    parser.epilog = "What follows -- are arguments of pytest, such as -- -k slot; without -m, slow cases are left out."
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    given, more = parser.parse_args(words[:at]), words[at + 1 :]
    tests = given.checkout.resolve() / "tools" / "server" / "tests"
    if not (tests / "utils.py").is_file():
        parser.error(f"{tests} has no tests of a server")
    with tempfile.TemporaryDirectory() as folder:
        results = given.results.resolve() if given.results else Path(folder, "results.jsonl")
        results.unlink(missing_ok=True)
        models = Path(folder, "models")
        models.mkdir()
        write_models(models, given.stories)
        write_encoders(models, tests)
        _run(tests, Path(folder), models, results, more)
        cases = [json.loads(line) for line in results.read_text().splitlines()]
    _print(cases)
    return int(any(case["outcome"] == "failed" for case in cases))


def _run(tests: Path, folder: Path, models: Path, results: Path, more: list[str]) -> None:
    shim = folder / "llama-server"
    server = start_fork_server(shim)
    (tests / "tmp").mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "LLAMA_SERVER_BIN_PATH": str(shim),
        "PORT": str(_free_port()),
        "PYTHONPATH": os.pathsep.join((str(_ROOT), str(tests))),
        "WOOLLY_LLAMA_TESTS": str(models),
        "WOOLLY_LLAMA_RESULTS": str(results),
    }
    plugin = "tests.clients.llama_cpp.plugin"
    chosen = more if any(word.startswith("unit") for word in more) else ["unit", *more]
    if "-m" not in chosen:
        chosen = [*chosen, "-m", "not slow"]  # as tests.sh of llama.cpp runs them
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", plugin, "-p", "no:cacheprovider", *chosen]
    try:
        subprocess.run(command, cwd=tests, env=environment, check=False)
    finally:
        server.kill()


def _free_port() -> int:
    """Returns a port below those that the system gives to connections, which could take it between two cases."""
    for port in range(20000 + os.getpid() % 5000, 32000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise SystemExit("llama tests: no port is free")


def _print(cases: list[dict[str, str]]) -> None:
    files = sorted({case["case"].split("::")[0] for case in cases})
    print("\n| tests | passed | failed | skipped |\n|---|---:|---:|---:|")
    for file in (*files, ""):
        ended = Counter(case["outcome"] for case in cases if case["case"].startswith(file))
        name = file.removeprefix("test_").removesuffix(".py") or "all"
        print(f"| {name} | {ended['passed']} | {ended['failed']} | {ended['skipped']} |")
    ended = Counter(case["outcome"] for case in cases)
    print(f"of {ended.total()} cases {ended['passed']} pass, {ended['failed']} fail, {ended['skipped']} are not run")
    for reason, n in Counter(case["reason"] for case in cases if case["outcome"] == "skipped").most_common():
        print(f"skipped {n}: {reason.removeprefix('Skipped: ')}")
    for case in cases:
        if case["outcome"] == "failed":
            print(f"failed {case['case']}: {case['reason']}")


if __name__ == "__main__":
    sys.exit(main())
