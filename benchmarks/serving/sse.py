"""A client for streamed completions over plain asyncio, light enough to leave the cores to the server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Answer:
    """Chunks of a stream, with their times."""

    status: int = 0
    text: str = ""
    finish_reason: str | None = None
    done: bool = False  # whether [DONE] came
    started: float = 0.0
    first: float = 0.0  # when the first text came; 0 where none did
    last: float = 0.0
    n_chunks: int = 0
    error: str = ""
    usage: dict[str, Any] = field(default_factory=dict)


async def complete(host: str, port: int, body: dict[str, Any], path: str = "/v1/completions") -> Answer:
    """One streamed text completion."""
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    return await exchange(host, port, path, asked, _take)


async def exchange(
    host: str,
    port: int,
    path: str,
    body: dict[str, Any],
    take: Callable[[Answer, bytes], None],
    *,
    tls: ssl.SSLContext | None = None,
    key: str = "",
) -> Answer:
    """One streamed request on a connection of its own; `take` reads the data of an event, or a line of JSON."""
    answer = Answer(started=time.perf_counter())
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 20, ssl=tls)
    try:
        data = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        )
        head += f"Authorization: Bearer {key}\r\n" if key else ""
        writer.write(head.encode() + b"Connection: close\r\n\r\n" + data)
        answer.status = int((await reader.readline()).split()[1])
        while (await reader.readline()).strip():
            pass
        with contextlib.suppress(ConnectionError):  # one that breaks off leaves the answer without its end
            async for line in reader:
                # Lengths of chunks stand between the events; no event of ours begins like one.
                if answer.status != 200:
                    answer.error += line.decode(errors="replace")
                elif line.startswith((b"data: ", b"{")):
                    take(answer, line.removeprefix(b"data: ").strip())
    finally:
        writer.close()
    return answer


def _take(answer: Answer, data: bytes) -> None:
    if data == b"[DONE]":
        answer.done = True
        return
    event = json.loads(data)
    if "error" in event:
        answer.error = json.dumps(event["error"])
        return
    answer.usage = event.get("usage") or answer.usage
    for choice in event.get("choices", ()):
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
        add(answer, choice.get("text"))


def add(answer: Answer, text: str | None) -> None:
    """Adds what an event brings to the text of an answer."""
    if text:
        answer.text += text
        answer.n_chunks += 1
        answer.last = time.perf_counter()
        answer.first = answer.first or answer.last
