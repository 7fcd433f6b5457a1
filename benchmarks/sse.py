"""A client for streamed completions over plain asyncio, light enough to leave the cores to the server."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Answer:
    """What a stream gave, and when."""

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
    """One streamed request on a connection of its own."""
    answer = Answer(started=time.perf_counter())
    reader, writer = await asyncio.open_connection(host, port)
    try:
        data = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        )
        writer.write(head.encode() + b"Connection: close\r\n\r\n" + data)
        answer.status = int((await reader.readline()).split()[1])
        while (await reader.readline()).strip():
            pass
        async for line in reader:
            # Lengths of chunks stand between the events; no event of ours begins like one.
            if line.startswith(b"data: "):
                _take(answer, line[6:].strip())
            elif answer.status != 200:
                answer.error += line.decode(errors="replace")
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
        if choice.get("text"):
            answer.text += choice["text"]
            answer.n_chunks += 1
            answer.last = time.perf_counter()
            answer.first = answer.first or answer.last
