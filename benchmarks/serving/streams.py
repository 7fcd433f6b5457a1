"""Throughput of many concurrent streams, as a share of the engine's own speed.

    python -m benchmarks.serving.streams MODEL.gguf --clients 64 256

For each number of clients: the engine alone answers as many prompts in a process of its own, then a server in another
process streams the same answers to clients in further processes, which count events and do not parse them. Both are
given by tokens per second from the first request to the last token, and as a ratio; beside it the first tokens and the
time that the server's event loop and its other threads took of a core. Needs nothing but Woolly.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import selectors
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

Data = dict[str, Any]

# The number comes first, so that no cache knows the beginning.
PROMPT = "{} is the number of this task: write a function in Python that sorts a list, and explain it line by line.\n"
_MAIN = "import sys; sys.setswitchinterval({}); from woolly.cli import main; main()"
_ROUTES = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


@dataclass(frozen=True)
class Case:
    model: str
    route: str
    n: int  # clients
    n_tokens: int  # of each answer
    device: str
    temperature: float
    first: int  # number of the first prompt
    switch: float = 0.005  # seconds after which a thread of the server must hand the interpreter on


def engine_alone(case: Case, found: Any) -> None:
    """Puts the tokens per second of the engine alone into a queue; in a process of its own, which frees the device."""
    from woolly import LLM, SamplingParams

    options = {} if case.device == "auto" else {"backend": case.device}
    with LLM(case.model, ctx=_ctx(case), max_running=case.n, kv_tokens=_kv_tokens(case), **options) as llm:
        params = SamplingParams(max_tokens=case.n_tokens, temperature=case.temperature, seed=1, ignore_eos=True)
        figures = []
        for turn in range(3):  # the first one warms up
            numbers = range(case.first + turn * case.n, case.first + (turn + 1) * case.n)
            prompts: list[Any] = [PROMPT.format(number) for number in numbers]
            started = time.perf_counter()
            if case.route == "chat":
                llm.chat([[{"role": "user", "content": one}] for one in prompts], params)
            else:
                llm.generate(prompts, params)
            figures.append(case.n * case.n_tokens / (time.perf_counter() - started))
        found.put(max(figures[1:]))


def _ctx(case: Case) -> int:
    return case.n_tokens + 256


def _kv_tokens(case: Case) -> int:
    return case.n * _ctx(case)


def _request(case: Case, number: int) -> bytes:
    text = PROMPT.format(number)
    body: Data = {"max_tokens": case.n_tokens, "temperature": case.temperature, "seed": 1, "ignore_eos": True}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    body |= {"messages": [{"role": "user", "content": text}]} if case.route == "chat" else {"prompt": text}
    data = json.dumps(body).encode()
    head = f"POST {_ROUTES[case.route]} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data


def clients(port: int, case: Case, numbers: list[int], start: Any, found: Any) -> None:
    """Asks for some of the answers at once, and puts what came into a queue: one row for each client."""
    waiting = selectors.DefaultSelector()
    rows: dict[int, Data] = {}
    for number in numbers:
        connection = socket.create_connection(("127.0.0.1", port))
        rows[number] = {"n_events": 0, "first": 0.0, "last": 0.0, "tail": b"", "is_done": False}
        waiting.register(connection, selectors.EVENT_READ, (connection, rows[number]))
    start.wait()
    began = time.monotonic()
    for key, number in zip(list(waiting.get_map().values()), numbers, strict=True):
        key.data[0].sendall(_request(case, number))
    n_open = len(numbers)
    while n_open:
        for key, _ in waiting.select():
            connection, row = key.data
            data = connection.recv(1 << 18)
            row["last"] = time.monotonic()
            if not row["first"] and (b'"text":"' in data or b'"content":"' in data):
                row["first"] = row["last"]
            row["n_events"] += data.count(b"data: ")
            row["tail"] = (row["tail"] + data)[-4096:]
            if not data:
                n_open -= 1
                waiting.unregister(connection)
                connection.close()
                row["is_done"] = b"data: [DONE]" in row["tail"]
    waiting.close()
    for row in rows.values():
        usage = row.pop("tail").rpartition(b'"completion_tokens":')[2]
        digits = usage[: next((i for i, byte in enumerate(usage) if not 48 <= byte <= 57), 0)]
        row["n_tokens"] = int(digits or b"0")
    found.put((began, list(rows.values())))


def processor_seconds(pid: int) -> tuple[float, float]:
    """Seconds of a core that the first thread of a process took, and all others together, also those that ended."""

    def seconds(file: str) -> float:
        fields = Path(file).read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    own = seconds(f"/proc/{pid}/task/{pid}/stat")
    return own, seconds(f"/proc/{pid}/stat") - own


def streamed(case: Case, n_processes: int, flags: list[str]) -> Data:
    """Measures a server; the better of two turns after one that warms it up."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-c",
        _MAIN.format(case.switch),
        "serve",
        "-m",
        case.model,
        "--port",
        str(port),
        "--log-level",
        "warning",
    ]
    command += ["-c", str(_ctx(case)), "--kv-tokens", str(_kv_tokens(case)), "--max-queue", str(case.n), *flags]
    if case.device != "auto":
        command += ["--backend", case.device]
    server = subprocess.Popen(command)
    try:
        _wait_for(server, port)
        turns = [_turn(server.pid, port, case, n_processes, turn) for turn in range(3)]
        return max(turns[1:], key=lambda one: float(one["tokens_per_second"]))
    finally:
        server.terminate()
        server.wait(60)


def _wait_for(server: subprocess.Popen[bytes], port: int) -> None:
    for _ in range(1200):
        if server.poll() is not None:
            raise SystemExit("streams: the server did not start")
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as connection:
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                if b" 200 " in connection.recv(100):
                    return
        except OSError:
            pass
        time.sleep(0.1)
    raise SystemExit("streams: the server was not ready within two minutes")


def _turn(pid: int, port: int, case: Case, n_processes: int, turn: int) -> Data:
    """One round of all clients."""
    context = multiprocessing.get_context("spawn")
    start, found = context.Event(), context.Queue()
    numbers = list(range(case.first + turn * case.n, case.first + (turn + 1) * case.n))
    shares = [numbers[i::n_processes] for i in range(n_processes) if numbers[i::n_processes]]
    parts = [context.Process(target=clients, args=(port, case, share, start, found)) for share in shares]
    for part in parts:
        part.start()
    time.sleep(1.0 + 0.1 * n_processes)  # until all have connected
    loop, others = processor_seconds(pid)
    start.set()
    given = [found.get(timeout=300) for _ in parts]
    loop_after, others_after = processor_seconds(pid)
    for part in parts:
        part.join()
    began = min(one for one, _ in given)
    rows = [row for _, some in given for row in some]
    seconds = max(row["last"] for row in rows) - began
    n_tokens = sum(row["n_tokens"] for row in rows)
    firsts = sorted(1000 * (row["first"] - began) for row in rows)
    return {
        "tokens_per_second": round(n_tokens / seconds, 1),
        "complete": sum(row["is_done"] and row["n_tokens"] == case.n_tokens for row in rows),
        "tokens_per_event": round(n_tokens / max(1, sum(row["n_events"] for row in rows)), 2),
        "first_token_ms_p50": round(statistics.median(firsts)),
        "first_token_ms_last": round(firsts[-1]),
        "loop_busy": round((loop_after - loop) / seconds, 3),
        "loop_us_per_token": round(1e6 * (loop_after - loop) / max(1, n_tokens), 1),
        "other_threads_busy": round((others_after - others) / seconds, 3),
    }


def measure(case: Case, n_processes: int, flags: list[str], switches: list[float]) -> Iterator[Data]:
    """Yields a row for each of the switch intervals, with one figure of the engine."""
    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    alone = context.Process(target=engine_alone, args=(case, found))
    alone.start()
    engine = found.get(timeout=300)
    alone.join()
    for switch in switches:
        server = streamed(replace(case, switch=switch), n_processes, flags)
        yield {
            "clients": case.n,
            "switch_interval": switch,
            "engine_tokens_per_second": round(engine, 1),
            "ratio": round(server["tokens_per_second"] / engine, 3),
            "server": server,
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving.streams",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", help="path of a GGUF file")
    parser.add_argument("--clients", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--tokens", type=int, default=256, help="of each answer")
    parser.add_argument("--processes", type=int, default=4, help="that the clients run in")
    parser.add_argument("--route", choices=sorted(_ROUTES), default="completions")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--switch-intervals", type=float, nargs="+", default=[0.005], help="of Python, in seconds")
    parser.add_argument("--flags", default="", help="further flags of the server, in one text")
    given = parser.parse_args()
    for n in given.clients:
        case = Case(given.model, given.route, n, given.tokens, given.backend, given.temperature, 10_000 * n)
        for row in measure(case, given.processes, given.flags.split(), given.switch_intervals):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
