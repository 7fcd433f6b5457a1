"""Replicas: what a front costs, and the proof that nobody notices when they are killed or replaced.

    python -m benchmarks.serving.replicas overhead MODEL.gguf    a server before one replica against a plain one
    python -m benchmarks.serving.replicas kill --times 200       kill -9 of a replica at a random token, again and again
    python -m benchmarks.serving.replicas update --clients 16    all replicas replaced three times under streams
    python -m benchmarks.serving.replicas cut --times 20         the network of a replica cut at a random token

Prints one JSON object. All but `overhead` take a random model that they write themselves if none is given; the exit
code is 1 where an answer broke off or differs from the one that the model gives alone, and where a stream paused for
more than a second beyond `--stall` when a network was cut. `cut` needs Linux, root and `ip`, and leaves nothing behind.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.serving import network
from benchmarks.serving.load import serving
from benchmarks.serving.sse import Answer, _take, complete, exchange

HOST = "127.0.0.1"
PROMPT = "{} is the number of this task: write a function in Python that sorts a list, and explain it line by line.\n"


def random_model(folder: Path) -> str:
    """A model of random weights, slow enough that an answer can be disturbed."""
    from tests.cases.tiny import TINY, write_tiny

    return str(write_tiny(replace(TINY["llama"], n_layers=24, width=256, ffn=512), folder / "random.gguf"))


def health(port: int) -> dict[str, Any]:
    """Return the server's report on its replicas."""
    with urllib.request.urlopen(f"http://{HOST}:{port}/health", timeout=60) as reply:
        found: dict[str, Any] = json.load(reply)
    return found


def counts(port: int) -> dict[str, float]:
    """Return the counters of the front."""
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=60) as reply:
        lines = [line for line in reply.read().decode().splitlines() if line.startswith("woolly_replicas_")]
    return {line.partition("{")[0].removesuffix("_total"): float(line.rpartition(" ")[2]) for line in lines}


@contextmanager
def replica_server() -> Iterator[tuple[str, int]]:
    """A replica that waits for a front; gives its address and its process."""
    main = "from woolly.cli import main; main()"
    command = [sys.executable, "-u", "-c", main, "cluster", "replica", "--listen", f"{HOST}:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1], process.pid
        finally:
            process.terminate()


async def overhead(options: argparse.Namespace) -> dict[str, Any]:
    """Both servers are asked in turn, so that a busy machine is busy for both; medians of the rounds."""
    found: dict[str, dict[str, list[float]]] = {}
    threads = ("-t", str(options.threads), "-c", "2048", "--no-webui")
    os.environ["WOOLLY_CLUSTER_SECRET"] = secrets.token_hex(16)
    with ExitStack() as stack:
        address, replica = stack.enter_context(replica_server())
        alone = stack.enter_context(serving(options.model, *threads))
        front = stack.enter_context(serving(options.model, *threads, "--replicas", "0", "--join", address))
        ports = {"alone": alone[0], "front": front[0]}
        processes = {"alone": [alone[1]], "front": [front[1], replica]}
        number = 0
        for round in range(options.rounds + 1):
            for name, port in sorted(ports.items(), reverse=bool(round % 2)):
                for clients in (1, options.clients):
                    bodies = []
                    for _ in range(clients):
                        number += 1
                        wish = {"max_tokens": options.tokens, "seed": number, "ignore_eos": True}
                        bodies.append({"prompt": PROMPT.format(number), **wish})
                    before = cpu_seconds(processes[name])
                    started = time.perf_counter()
                    answers = await asyncio.gather(*(complete(HOST, port, body) for body in bodies))
                    seconds = time.perf_counter() - started
                    used = cpu_seconds(processes[name]) - before
                    if round:  # the first one warms up
                        own = found.setdefault(f"{clients} clients", {})
                        own.setdefault(f"{name} first ms", []).append(
                            1000 * statistics.median(one.first - one.started for one in answers)
                        )
                        own.setdefault(f"{name} tokens/s", []).append(options.tokens * clients / seconds)
                        own.setdefault(f"{name} cpu ms/token", []).append(1000 * used / options.tokens / clients)
    told: dict[str, Any] = {}
    for clients, own in found.items():
        middle = {name: round_(statistics.median(values)) for name, values in sorted(own.items())}
        middle["added ms to the first token"] = round_(middle["front first ms"] - middle["alone first ms"])
        middle["lost throughput %"] = round_(100 * (1 - middle["front tokens/s"] / middle["alone tokens/s"]))
        middle["added cpu ms/token"] = round_(middle["front cpu ms/token"] - middle["alone cpu ms/token"])
        told[clients] = middle
    return told


def cpu_seconds(processes: list[int]) -> float:
    """Return the CPU seconds of processes so far: the one number that a busy machine hardly changes."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in processes]
    return sum(int(own[11]) + int(own[12]) for own in fields) / os.sysconf("SC_CLK_TCK")


def round_(number: float) -> float:
    """Three places."""
    return round(number, 3)


async def kill(options: argparse.Namespace) -> dict[str, Any]:
    """A stream each time, with the replica that computes it killed after a random number of events."""
    rng = random.Random(options.seed)
    told = {"answers": 0, "killed in mid-stream": 0, "broken": 0, "different": 0}
    body = {"prompt": "The sheep on the hill", "max_tokens": 150, "temperature": 1.0, "ignore_eos": True}
    flags = ("--replicas", "2", "-t", "1", "-c", "512", "--no-webui")
    with serving(options.model, *flags) as (port, _):
        whole = {}
        for seed in range(8):
            whole[seed] = (await complete(HOST, port, {**body, "seed": seed})).text
        while told["killed in mid-stream"] < options.times:
            while sum(one["state"] == "ready" for one in health(port)["replicas"]) < 1:
                await asyncio.sleep(0.05)
            seed, at = rng.randrange(8), rng.randrange(1, 120)
            before = counts(port)["woolly_replicas_moved"]
            found: asyncio.Future[int] | None = None

            def take(answer: Answer, data: bytes, at: int = at) -> None:
                nonlocal found
                _take(answer, data)
                if answer.n_chunks >= 1 and found is None:
                    found = asyncio.ensure_future(asyncio.to_thread(computing, port))
                    found.add_done_callback(lambda done: strike(done.result()) if answer.n_chunks >= at else None)
                elif answer.n_chunks == at and found is not None and found.done():
                    strike(found.result())

            asked = {**body, "seed": seed, "stream": True}
            answer = await exchange(HOST, port, "/v1/completions", asked, take)
            told["answers"] += 1
            told["killed in mid-stream"] += counts(port)["woolly_replicas_moved"] > before
            told["broken"] += not answer.done or bool(answer.error)
            told["different"] += answer.text != whole[seed]
    return told


def computing(port: int) -> int:
    """The process that computes an answer now; 0 if there is none."""
    return next((int(one["pid"]) for one in health(port)["replicas"] if one["open"] and "pid" in one), 0)


def strike(pid: int) -> None:
    """Kills a process, if it is still there."""
    if pid:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def update(options: argparse.Namespace) -> dict[str, Any]:
    """Clients stream one answer after another while all replicas are replaced, several times."""
    body = {"prompt": "The sheep on the hill", "max_tokens": 60, "temperature": 1.0, "ignore_eos": True}
    told = {"updates": 0, "answers": 0, "broken": 0, "different": 0}
    is_over = False

    async def read(seed: int, port: int, wanted: str) -> None:
        while not is_over:
            answer = await complete(HOST, port, {**body, "seed": seed})
            told["answers"] += 1
            told["broken"] += not answer.done or bool(answer.error)
            told["different"] += answer.text != wanted

    flags = ("--replicas", "2", "-t", "1", "-c", "512", "--no-webui", "--grace", "1")
    with serving(options.model, *flags) as (port, pid):
        wanted = [(await complete(HOST, port, {**body, "seed": seed})).text for seed in range(options.clients)]
        clients = [asyncio.create_task(read(seed, port, text)) for seed, text in enumerate(wanted)]
        for _ in range(options.rounds):
            before = {one["pid"] for one in (await asyncio.to_thread(health, port))["replicas"]}
            os.kill(pid, signal.SIGUSR1)
            while True:
                replicas = (await asyncio.to_thread(health, port))["replicas"]
                if all(one["state"] == "ready" for one in replicas) and not before & {one["pid"] for one in replicas}:
                    break
                await asyncio.sleep(0.1)
            told["updates"] += 1
        is_over = True
        await asyncio.gather(*clients)
    return told


async def cut(options: argparse.Namespace) -> dict[str, Any]:
    """A stream each time, with the network of the replica that computes it cut after a random number of events."""
    rng = random.Random(options.seed)
    told: dict[str, Any] = {"answers": 0, "cut in mid-stream": 0, "broken": 0, "different": 0}
    body = {"prompt": "The sheep on the hill", "max_tokens": 150, "temperature": 1.0, "ignore_eos": True}
    flags = ("-t", "1", "-c", "512", "--no-webui")
    gaps: list[float] = []
    returns: list[float] = []
    with serving(options.model, *flags) as (port, _):
        whole = {seed: (await complete(HOST, port, {**body, "seed": seed})).text for seed in range(8)}
    os.environ["WOOLLY_CLUSTER_SECRET"] = secrets.token_hex(16)
    with ExitStack() as stack:
        addresses = [stack.enter_context(_far(number)) for number in range(2)]
        join = ("--replicas", "0", "--join", ",".join(addresses), "--stall", str(options.stall))
        port, _ = stack.enter_context(serving(options.model, *flags, *join))
        while told["cut in mid-stream"] < options.times:
            began = time.perf_counter()
            while sum(one["state"] == "ready" for one in health(port)["replicas"]) < 2:
                await asyncio.sleep(0.05)
            if told["answers"]:
                returns.append(time.perf_counter() - began)
            seed, at = rng.randrange(8), rng.randrange(1, 100)
            before = counts(port)["woolly_replicas_moved"]
            times: list[float] = []
            lost = -1

            def take(answer: Answer, data: bytes, at: int = at, times: list[float] = times) -> None:
                nonlocal lost
                times.append(time.perf_counter())
                _take(answer, data)
                if answer.n_chunks >= at and lost < 0:
                    lost = next((addresses.index(one["replica"]) for one in health(port)["replicas"] if one["open"]), 2)
                    if lost < 2:
                        network.cut(lost)

            asked = {**body, "seed": seed, "stream": True}
            answer = await exchange(HOST, port, "/v1/completions", asked, take)
            if 0 <= lost < 2:
                await asyncio.sleep(options.seconds)
                network.mend(lost)
            told["answers"] += 1
            if counts(port)["woolly_replicas_moved"] > before:
                told["cut in mid-stream"] += 1
                gaps.append(max(later - earlier for earlier, later in pairwise(times)))
            told["broken"] += not answer.done or bool(answer.error)
            told["different"] += answer.text != whole[seed]
    told["too long"] = sum(gap > options.stall + 1 for gap in gaps)
    for name, seconds in (("longest gap", gaps), ("seconds until both were ready", returns)):
        if seconds:
            told[name] = {"median": round_(statistics.median(seconds)), "most": round_(max(seconds))}
    return told


@contextmanager
def _far(number: int) -> Iterator[str]:
    """A replica in a network of its own; gives its address."""
    main = "from woolly.cli import main; main()"
    listen = f"{network.address(number)}:7070"
    command = [sys.executable, "-u", "-c", main, "cluster", "replica", "--listen", listen]
    with network.machine(number, command) as process:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise SystemExit("replicas: a replica did not start")
        yield listen


def main() -> None:
    """Reads the options and prints what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("overhead", "kill", "update", "cut"))
    parser.add_argument("model", nargs="?", help="a GGUF file; without it, random weights")
    parser.add_argument("--times", type=int, default=200, help="kills or cuts")
    parser.add_argument("--seed", type=int, default=1, help="of the tokens at which replicas are killed or cut off")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=48, help="of each answer of `overhead`")
    parser.add_argument("--stall", type=float, default=2.0, help="seconds of silence, of `cut`")
    parser.add_argument("--seconds", type=float, default=0.0, help="that a network stays cut after its answer ended")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # ends what was started
    if options.what == "cut":
        network.enter()
    with tempfile.TemporaryDirectory() as folder:
        options.model = options.model or random_model(Path(folder))
        told = asyncio.run({"overhead": overhead, "kill": kill, "update": update, "cut": cut}[options.what](options))
    print(json.dumps(told, indent=1))
    if told.get("broken") or told.get("different") or told.get("too long"):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
