"""A stream that is silent has heartbeats, and nothing else changes."""

import asyncio

import pytest

from tests.cases.clock import run_skipping
from woolly.serving.dialects import heartbeat
from woolly.serving.dialects.heartbeat import with_heartbeats


def frames_of(source):
    async def read():
        return [frame async for frame in with_heartbeats(source, lambda: b"beat")]

    return run_skipping(read())


def test_silent_stream_has_heartbeats(monkeypatch):
    async def slow():
        yield b"first"
        await asyncio.sleep(70)
        yield b"last"

    monkeypatch.setattr(heartbeat, "SECONDS", 20)
    assert frames_of(slow()) == [b"first", *[b"beat"] * 3, b"last"]


def test_busy_stream_has_no_heartbeats(monkeypatch):
    async def busy():
        for number in range(50):
            await asyncio.sleep(15)
            yield b"%d" % number

    monkeypatch.setattr(heartbeat, "SECONDS", 20)
    assert frames_of(busy()) == [b"%d" % number for number in range(50)]


def test_error_passes_through_the_heartbeats():
    seen = []

    async def broken():
        yield b"first"
        raise ZeroDivisionError

    async def read():
        async for frame in with_heartbeats(broken(), lambda: b"beat"):
            seen.append(frame)

    with pytest.raises(ZeroDivisionError):
        run_skipping(read())
    assert seen == [b"first"]


def test_disconnected_reader_ends_the_stream():
    ended = []

    async def endless():
        try:
            while True:
                yield b"x"
                await asyncio.sleep(1)
        finally:
            ended.append(True)

    async def read():
        stream = with_heartbeats(endless(), lambda: b"beat")
        assert await anext(stream) == b"x"
        await stream.aclose()
        await asyncio.sleep(10)
        assert ended == [True]

    run_skipping(read())
