"""A stream that is silent has heartbeats, and nothing else changes."""

import asyncio

import pytest

from woolly.serving.dialects import heartbeat
from woolly.serving.dialects.heartbeat import with_heartbeats


def frames_of(source):
    async def read():
        return [frame async for frame in with_heartbeats(source, lambda: b"beat")]

    return asyncio.run(read())


def test_a_silent_stream_has_heartbeats(monkeypatch):
    async def slow():
        yield b"first"
        await asyncio.sleep(0.07)
        yield b"last"

    monkeypatch.setattr(heartbeat, "SECONDS", 0.02)
    first, *beats, last = frames_of(slow())
    assert (first, last) == (b"first", b"last") and set(beats) == {b"beat"}


def test_a_busy_stream_has_none(monkeypatch):
    async def busy():
        for number in range(50):
            await asyncio.sleep(0.002)
            yield b"%d" % number

    monkeypatch.setattr(heartbeat, "SECONDS", 5)
    assert frames_of(busy()) == [b"%d" % number for number in range(50)]


def test_a_fault_passes_through_the_heartbeats():
    seen = []

    async def broken():
        yield b"first"
        raise ZeroDivisionError

    async def read():
        async for frame in with_heartbeats(broken(), lambda: b"beat"):
            seen.append(frame)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(read())
    assert seen == [b"first"]


def test_a_reader_that_leaves_ends_the_stream():
    ended = []

    async def endless():
        try:
            while True:
                yield b"x"
                await asyncio.sleep(0.001)
        finally:
            ended.append(True)

    async def read():
        stream = with_heartbeats(endless(), lambda: b"beat")
        assert await anext(stream) == b"x"
        await stream.aclose()
        await asyncio.sleep(0.01)

    asyncio.run(read())
    assert ended == [True]
