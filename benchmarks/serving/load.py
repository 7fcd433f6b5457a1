"""Many clients stream from one server; every reply must be complete and the same as the one it gets alone.

    ./scripts/load                        64 clients for five minutes on the default model
    ./scripts/load --clients 8 --seconds 20
    ./scripts/load --mixed                chats in four dialects at once: OpenAI's, its responses, Anthropic's, Ollama's
    ./scripts/load --team --seconds 3600  the same over TLS with named keys, on three tiny models that swap

Prints one JSON object; the exit code is 1 where a reply was not in order, or memory grew.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.serving.dialects import ask, mixed_requests
from benchmarks.serving.sse import Answer, complete
from benchmarks.serving.team import drive_team, is_sound, team_serving

TEXTS = (
    "The sheep on the hill", "One two three one two three", "def add(a, b):\n    return", "Q: Why is the sky blue?\nA:",
    "Once upon a time there was", "A list of colours:\n- red\n-", "SELECT name FROM", "It was a dark and stormy night",
)  # fmt: skip


_OWN = ("replies", "tokens", "incomplete", "different")


def requests() -> list[dict[str, Any]]:
    """Requests of many kinds, each with its own seed, so that each has one right answer."""
    made = []
    for i, text in enumerate(TEXTS):
        for j, wish in enumerate(({"temperature": 0}, {}, {"top_k": 5, "min_p": 0.1}, {"regex": "[a-z ,.]{10,60}"})):
            made.append({"prompt": text * (1 + i % 3), "max_tokens": 16 + 8 * (i % 4), "seed": 10 * i + j, **wish})
    return made


@contextlib.contextmanager
def serving(model: str, *flags: str) -> Iterator[tuple[int, int]]:
    """A server process; gives its port and its id."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    main = "from woolly.cli import main; main()"
    command = [sys.executable, "-c", main, "serve", "-m", model, "--port", str(port), "--log-level", "warning", *flags]
    process = subprocess.Popen(command)
    try:
        for _ in range(1200):
            if process.poll() is not None:
                raise SystemExit("load: the server did not start")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as connection:
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                if b" 200 " in connection.recv(100):
                    break
            time.sleep(0.1)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(60)


def memory_of(pid: int) -> int:
    """Bytes that a process keeps in memory."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in status if line.startswith("VmRSS")))


async def drive(port: int, pid: int, clients: int, seconds: float, *, is_mixed: bool) -> dict[str, Any]:
    """Clients that ask one request after the other until the time is over."""
    bodies, send = (mixed_requests(), ask) if is_mixed else (requests(), complete)
    wanted = {}
    for body in bodies:
        answer = await send("127.0.0.1", port, body)
        wanted[json.dumps(body)] = (answer.text, answer.finish_reason)
        if not answer.done:
            raise SystemExit(f"load: a request alone failed: {answer.error}")
    counts: Counter[str] = Counter()
    faults: list[str] = []
    delays: list[float] = []
    memory: list[int] = []
    end = time.monotonic() + seconds

    async def client(number: int) -> None:
        rng = random.Random(number)
        while time.monotonic() < end:
            body = rng.choice(bodies)
            answer: Answer = await send("127.0.0.1", port, body)
            counts[body.get("dialect", "completions")] += 1
            counts["replies"] += 1
            counts["tokens"] += answer.usage.get("completion_tokens", 0)
            if not answer.done:
                counts["incomplete"] += 1
                faults.append(f"{answer.status} {answer.error}"[:300])
            elif (answer.text, answer.finish_reason) != wanted[json.dumps(body)]:
                counts["different"] += 1
                faults.append(json.dumps(body))
            if answer.first:
                delays.append(answer.first - answer.started)

    async def watch() -> None:
        while True:
            await asyncio.sleep(min(5.0, seconds / 10))
            memory.append(memory_of(pid))

    watching = asyncio.create_task(watch())
    await asyncio.gather(*(client(number) for number in range(clients)))
    watching.cancel()
    delays.sort()
    # The first tenth warms up: caches of grammars and prefixes fill.
    grown = memory[-1] - memory[len(memory) // 10] if memory else 0
    return {
        "clients": clients,
        "seconds": seconds,
        "replies": counts["replies"],
        "by_dialect": {name: n for name, n in sorted(counts.items()) if name not in _OWN},
        "incomplete": counts["incomplete"],
        "different": counts["different"],
        "tokens_per_second": round(counts["tokens"] / seconds, 1),
        "first_token_ms_p50": round(1000 * delays[len(delays) // 2], 1) if delays else None,
        "first_token_ms_p95": round(1000 * delays[len(delays) * 95 // 100], 1) if delays else None,
        "memory_mb": round(memory[-1] / 1e6) if memory else None,
        "memory_grown_mb": round(grown / 1e6, 1),
        "faults": faults[:5],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="a GGUF file or a model's name")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--mixed", action="store_true", help="chats in four dialects, some with tools or a schema")
    parser.add_argument("--team", action="store_true", help="the same over TLS, with keys, on tiny models that swap")
    options = parser.parse_args()
    if options.team:
        with tempfile.TemporaryDirectory() as folder, team_serving(Path(folder), options.clients) as team:
            report = asyncio.run(drive_team(team, options.clients, options.seconds))
        print(json.dumps(report, indent=2))
        return 0 if is_sound(report) else 1
    with serving(options.model, "-c", "2048", "--max-queue", str(options.clients)) as (port, pid):
        report = asyncio.run(drive(port, pid, options.clients, options.seconds, is_mixed=options.mixed))
    print(json.dumps(report, indent=2))
    sound = not report["incomplete"] and not report["different"] and report["memory_grown_mb"] < 64
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
