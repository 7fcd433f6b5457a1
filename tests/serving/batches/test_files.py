"""Rows of files: what is read is closed, however the reading ends."""

import asyncio
import threading

import pytest

from woolly.serving.batches import files


def test_cancelled_reader_closes_its_file_after_its_thread(tmp_path, monkeypatch):
    entered, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    def lines(path):
        try:
            entered.set()
            assert go_on.wait(60)
            yield b"{}"
        finally:
            closed.set()

    async def read():
        return [row async for row in files.read_rows(tmp_path / "rows.jsonl")]

    async def story():
        reading = asyncio.create_task(read())
        while not entered.is_set():
            await asyncio.sleep(0.005)
        reading.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert closed.is_set()

    monkeypatch.setattr(files, "_lines", lines)
    asyncio.run(story())
