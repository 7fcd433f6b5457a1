"""A team's server for an hour: four dialects over TLS, with named keys, and models that take each other's place.

    ./scripts/load --team                     64 clients for five minutes on three tiny models
    ./scripts/load --team --seconds 3600

One model fits at a time, so that requests for four names (two of them share a model) swap models all the time. Every
reply must be the one that its request got alone; a client in twenty leaves in the middle of its answer. Each minute
SIGHUP makes the server read its keys and its certificate again, and a line on standard error says how it stands. At
the end the server's own record of usage must have the tokens that the clients were given, key by key.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.serving.dialects import ask, mixed_requests
from benchmarks.serving.sse import Answer

Data = dict[str, Any]

NAMES = ("fast", "calm", "other", "third")  # fast and calm share one model
PEOPLE = ("anna", "ben", "carla", "dora")
LEAVER, POOR, BOSS = "leaver", "poor", "boss"  # who leaves early, who may use few tokens, who sees all
_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}assistant: {% endif %}"
)
_CONFIG = """
[serve]
host = "127.0.0.1"
port = {port}
tls = "auto"
models-dir = "{folder}/models"
models-max = 1
swap-wait = 0.5
max-queue = {queue}
keep-requests = 50
timeout = 300
load-wait = 600
threads = {threads}

[models.fast]
from = "one"
temperature = 0.2
[models.calm]
from = "one"
[models.other]
from = "two"
kv_type = "q8_0"
[models.third]
from = "three"
ctx = 1536
"""


@dataclass
class Tally:
    """Replies that the clients received."""

    counts: Counter[str] = field(default_factory=Counter)
    requests: Counter[str] = field(default_factory=Counter)  # that were answered, by key
    tokens: Counter[str] = field(default_factory=Counter)  # of these answers
    faults: list[str] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)
    memory: list[tuple[int, int]] = field(default_factory=list)  # seconds since the start, bytes


@dataclass(frozen=True)
class Team:
    """A running server: its port, its process, what clients trust, and the keys by name."""

    port: int
    pid: int
    tls: ssl.SSLContext
    keys: dict[str, str]
    log: Path

    def get(self, path: str, person: str = BOSS) -> Any:
        """Returns the JSON of a route."""
        request = urllib.request.Request(
            f"https://localhost:{self.port}{path}", headers={"Authorization": f"Bearer {self.keys[person]}"}
        )
        with urllib.request.urlopen(request, timeout=60, context=self.tls) as reply:
            return json.load(reply)


def write_models(folder: Path) -> None:
    """Writes three tiny models that chat, of three architectures: one with a window, one with recurrent layers."""
    from tests.cases.families import FAMILIES
    from tests.cases.hybrids import HYBRIDS
    from tests.cases.tiny import TINY, write_tiny

    folder.mkdir(parents=True)
    for name, tiny in (("one", TINY["llama"]), ("two", FAMILIES["gemma3"]), ("three", HYBRIDS["qwen35"])):
        metadata = {**tiny.shared_metadata, "tokenizer.chat_template": _TEMPLATE}
        write_tiny(replace(tiny, context=2048, shared_metadata=metadata), folder / f"{name}.gguf")


def add_key(folder: Path, name: str, *flags: str) -> str:
    """Adds a key to the server's file; returns it."""
    command = [sys.executable, "-m", "woolly", "keys", "add", name, "--keys-file", str(folder / "woolly.toml"), *flags]
    shown = subprocess.run([*command, "--json"], check=True, capture_output=True, text=True).stdout
    return str(json.loads(shown)["key"])


@contextlib.contextmanager
def team_serving(folder: Path, clients: int, threads: int = 1) -> Iterator[Team]:
    """A server process as `woolly serve` starts it in the folder of its file."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    write_models(folder / "models")
    text = _CONFIG.format(port=port, folder=folder, queue=clients, threads=threads)
    (folder / "woolly.toml").write_text(text)
    keys = {name: add_key(folder, name, "--tokens-per-day", "2000000000") for name in (*PEOPLE, LEAVER)}
    keys[POOR] = add_key(folder, POOR, "--tokens-per-day", "3000", "--models", "calm")
    keys[BOSS] = add_key(folder, BOSS, "--admin")
    environment = {**os.environ, "WOOLLY_HOME": str(folder)}
    with (folder / "server.log").open("wb") as log:
        command = [sys.executable, "-m", "woolly", "serve", "--config", str(folder / "woolly.toml")]
        command += ["--usage-file", str(folder / "usage.db")]
        command += ["--keys-file", str(folder / "woolly.toml")]
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log)
        try:
            for _ in range(1200):
                if process.poll() is not None:
                    raise SystemExit(f"load: the server did not start: {(folder / 'server.log').read_text()}")
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.1)
            certificate = next(one for one in (folder / "tls").glob("*.pem") if not one.stem.endswith("-key"))
            yield Team(port, process.pid, ssl.create_default_context(cafile=certificate), keys, folder / "server.log")
        finally:
            process.terminate()
            process.wait(120)


async def drive_team(team: Team, clients: int, seconds: float) -> Data:
    """Clients that ask one request after the other until the time is over."""
    from benchmarks.serving.load import memory_of

    requests = [{**request, "model": name} for request in mixed_requests() for name in NAMES]
    wanted: dict[str, tuple[str, str | None]] = {}
    tally = Tally()
    for request in sorted(requests, key=lambda one: str(one["model"])):
        answer = await ask("localhost", team.port, request, tls=team.tls, key=team.keys[PEOPLE[0]])
        if not answer.done:
            raise SystemExit(f"load: a request alone failed: {answer.status} {answer.error}")
        wanted[json.dumps(request)] = (answer.text, answer.finish_reason)
    before = await asyncio.to_thread(team.get, "/api/v1/usage?by=key")
    started = time.monotonic()
    end = started + seconds

    async def asked(request: Data, person: str) -> Answer:
        """An answer; a connection that a starved machine did not open in time is opened again, up to 100 times."""
        for _ in range(100):
            try:
                return await ask("localhost", team.port, request, tls=team.tls, key=team.keys[person])
            except (ConnectionError, ssl.SSLError, IndexError):
                tally.counts["connected again"] += 1
                await asyncio.sleep(0.1)
        raise SystemExit("load: the server takes no connections any more")

    async def client(number: int) -> None:
        rng = random.Random(number)
        person = PEOPLE[number % len(PEOPLE)]
        while time.monotonic() < end:
            request = rng.choice(requests)
            tally.counts["asked"] += 1
            if rng.random() < 0.05:
                await leave(request, rng.random() * 0.5)
                continue
            answer = await asked(request, person)
            tally.counts[request["dialect"]] += 1
            if not answer.done:
                tally.counts["incomplete"] += 1
                tally.faults.append(f"{answer.status} {answer.error}"[:300])
                continue
            tally.requests[person] += 1
            tally.tokens[person] += answer.usage["completion_tokens"]
            if (answer.text, answer.finish_reason) != wanted[json.dumps(request)]:
                tally.counts["different"] += 1
                tally.faults.append(json.dumps([request, answer.text, wanted[json.dumps(request)]]))
            tally.delays.append(answer.first - answer.started if answer.first else 0.0)

    async def leave(request: Data, after: float) -> None:
        task = ask("localhost", team.port, request, tls=team.tls, key=team.keys[LEAVER])
        with contextlib.suppress(asyncio.TimeoutError, TimeoutError, ConnectionError, ssl.SSLError, IndexError):
            await asyncio.wait_for(task, after)
        tally.counts["left"] += 1

    async def poor() -> None:
        request = next(one for one in requests if one["model"] == "calm")
        while time.monotonic() < end:
            answer = await asked(request, POOR)
            tally.counts["poor: 429" if answer.status == 429 else "poor: answered"] += 1
            if answer.status == 429 and "it is free again at" not in answer.error:
                tally.faults.append(answer.error[:300])
            await asyncio.sleep(5)

    async def watch() -> None:
        while True:
            await asyncio.sleep(min(10.0, seconds / 20))
            passed = round(time.monotonic() - started)
            if not tally.memory or passed // 60 > tally.memory[-1][0] // 60:
                os.kill(team.pid, signal.SIGHUP)  # keys and certificate are read again
                n_wrong = tally.counts["incomplete"] + tally.counts["different"]
                now = f"{passed} s, {memory_of(team.pid) / 1e6:.0f} MB, {tally.counts['asked']} asked, {n_wrong} wrong"
                print(f"load: {now}", file=sys.stderr, flush=True)
            tally.memory.append((passed, memory_of(team.pid)))

    watching = asyncio.create_task(watch())
    await asyncio.gather(*(client(number) for number in range(clients)), poor())
    watching.cancel()
    await asyncio.sleep(5)  # the record of usage is written every two seconds
    after = await asyncio.to_thread(team.get, "/api/v1/usage?by=key")
    loads = team.log.read_text().count("model loaded")
    return {"loads": loads, **_report(tally, before, after, clients, seconds)}


def _report(tally: Tally, before: Data, after: Data, clients: int, seconds: float) -> Data:
    delays, memory = sorted(tally.delays), tally.memory
    settled = [size for passed, size in memory if passed > seconds / 10] or [0]
    half = len(settled) // 2
    return {
        "clients": clients,
        "seconds": seconds,
        "counts": dict(sorted(tally.counts.items())),
        "incomplete": tally.counts["incomplete"],
        "different": tally.counts["different"],
        "first_token_ms_p50": round(1000 * delays[len(delays) // 2], 1) if delays else None,
        "first_token_ms_p95": round(1000 * delays[len(delays) * 95 // 100], 1) if delays else None,
        "memory_mb": [round(size / 1e6) for _, size in memory[:: max(1, len(memory) // 20)]],
        "memory_grown_mb": round((max(settled[half:]) - max(settled[: half or 1])) / 1e6, 1),
        "usage_wrong": _wrong_usage(tally, _by_key(before), _by_key(after)),
        "faults": tally.faults[:5],
    }


def _by_key(usage: Data) -> dict[str, Data]:
    return {row["key"]: row for row in usage["usage"]}


def _wrong_usage(tally: Tally, before: dict[str, Data], after: dict[str, Data]) -> list[str]:
    """Returns a line for each person whose record differs from what its clients were given."""
    lines = []
    for person in PEOPLE:
        for name, seen in (("requests", tally.requests[person]), ("completion_tokens", tally.tokens[person])):
            kept = after[person][name] - before.get(person, {}).get(name, 0)
            if kept != seen:
                lines.append(f"{person} was given {seen} {name}, the record has {kept}")
    return lines


def is_sound(report: Data) -> bool:
    """Return True if every reply was right, and memory did not grow."""
    wrong = report["incomplete"] or report["different"] or report["usage_wrong"] or report["faults"]
    return not wrong and report["memory_grown_mb"] < 64
