"""Throughput and time to the first token at 1, 8 and 16 clients: library, server and a llama.cpp server, in turn.

    python -m benchmarks.serving MODEL.gguf --llama-server build/bin/llama-server

The three are loaded at once and asked one after the other in every round, so that a machine that is busy is busy for
all; the medians of the rounds are given. The peer is llama-server, with a slot for each client, or by --peer-python
`python -m llama_cpp.server`, which answers one request at a time; with neither it is left out. The library is AsyncLLM
in this process: what the server adds to it is HTTP.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import statistics
import subprocess
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from benchmarks.serving.load import serving
from benchmarks.serving.sse import complete
from woolly import AsyncLLM, SamplingParams

# The number comes first, so that no cache knows the beginning.
PROMPT = "{} is the number of this task: write a function in Python that sorts a list, and explain it line by line.\n"

# One request: its number -> (seconds to the first text, tokens).
Ask = Callable[[int], Awaitable[tuple[float, int]]]


def peer_command(options: argparse.Namespace, port: int) -> list[str]:
    """Return the command that starts the peer on a port."""
    model, ctx, threads = options.model, options.ctx, str(options.threads)
    if options.llama_server is not None:
        slots = max(options.clients)
        flags = ["-m", model, "--port", str(port), "-t", threads, "-c", str(ctx * slots), "-np", str(slots)]
        return [options.llama_server, *flags, "--no-webui"]
    flags = ["--model", model, "--port", str(port), "--n_ctx", str(ctx), "--n_threads", threads, "--verbose", "false"]
    # By default it breaks an answer off when another request comes.
    return [options.peer_python, "-m", "llama_cpp.server", *flags, "--interrupt_requests", "false"]


@contextlib.contextmanager
def peer_serving(options: argparse.Namespace) -> Iterator[int]:
    """A llama.cpp server; gives its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = peer_command(options, port)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(1200):
            if process.poll() is not None:
                raise SystemExit(f"serving: the peer did not start: {' '.join(command)}")
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5):
                break
            time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait(60)


def of_server(port: int, tokens: int, own: bool) -> Ask:
    """Asks over HTTP."""

    async def ask(number: int) -> tuple[float, int]:
        body: dict[str, Any] = {"prompt": PROMPT.format(number), "max_tokens": tokens, "temperature": 0.0}
        if own:
            body["ignore_eos"] = True
        answer = await complete("127.0.0.1", port, body)
        if not answer.done:
            raise SystemExit(f"serving: a request failed: {answer.status} {answer.error}")
        return answer.first - answer.started, answer.usage.get("completion_tokens", answer.n_chunks)

    return ask


def of_library(llm: AsyncLLM, tokens: int) -> Ask:
    """Asks in this process."""

    async def ask(number: int) -> tuple[float, int]:
        started, first = time.perf_counter(), 0.0
        params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
        async for chunk in llm.stream(PROMPT.format(number), params):
            if chunk.text and not first:
                first = time.perf_counter()
        return first - started, tokens

    return ask


async def measure(ask: Ask, clients: int, first_number: int) -> tuple[float, float]:
    """Milliseconds to the first text (median of the clients), and tokens per second of all together."""
    started = time.perf_counter()
    answers = await asyncio.gather(*(ask(first_number + i) for i in range(clients)))
    seconds = time.perf_counter() - started
    return 1000 * statistics.median(first for first, _ in answers), sum(n for _, n in answers) / seconds


async def compare(asks: dict[str, Ask], rounds: int, counts: list[int]) -> list[dict[str, Any]]:
    """One row per number of clients."""
    rows = []
    number = 0
    for clients in counts:
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in asks}
        for _ in range(rounds):
            for name, ask in asks.items():
                number += clients  # no prompt comes twice, or the cache would know it
                found[name].append(await measure(ask, clients, number))
        row: dict[str, Any] = {"clients": clients}
        for name, figures in found.items():
            row[name] = {
                "first_token_ms": round(statistics.median(first for first, _ in figures), 1),
                "tokens_per_second": round(statistics.median(rate for _, rate in figures), 1),
            }
        server = row["server"]
        row["http_adds_ms"] = round(server["first_token_ms"] - row["library"]["first_token_ms"], 1)
        row["http_costs_share"] = round(1 - server["tokens_per_second"] / row["library"]["tokens_per_second"], 3)
        if "peer" in row:
            row["throughput_ratio"] = round(server["tokens_per_second"] / row["peer"]["tokens_per_second"], 2)
            row["first_token_ratio"] = round(row["peer"]["first_token_ms"] / server["first_token_ms"], 2)
        rows.append(row)
    return rows


async def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Starts all, measures, stops all."""
    threads = str(options.threads)
    with contextlib.ExitStack() as stack:
        flags = ("-c", str(options.ctx), "-t", threads, "-np", "16", "--max-queue", "64")
        port, _ = stack.enter_context(serving(options.model, *flags))
        async with AsyncLLM(options.model, ctx=options.ctx, threads=options.threads) as llm:
            asks = {"library": of_library(llm, options.tokens), "server": of_server(port, options.tokens, True)}
            if options.peer_python is not None or options.llama_server is not None:
                peer = stack.enter_context(peer_serving(options))
                asks["peer"] = of_server(peer, options.tokens, options.llama_server is not None)
            for ask in asks.values():  # warm: pages, tables, connections
                await measure(ask, 1, 10**6)
            return await compare(asks, options.rounds, options.clients)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="path of a GGUF file")
    parser.add_argument("--llama-server", help="path of llama.cpp's server")
    parser.add_argument("--peer-python", help="Python that has llama-cpp-python[server]")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ctx", type=int, default=2048)
    print(json.dumps(asyncio.run(run(parser.parse_args())), indent=2))


if __name__ == "__main__":
    main()
