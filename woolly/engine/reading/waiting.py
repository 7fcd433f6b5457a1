"""Waiting for a reading on an event loop."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from woolly.engine.reading.reading import Reading
    from woolly.engine.threads.driver import EngineDriver


async def wait_for_reading(driver: EngineDriver, reading: Reading) -> None:
    """Runs a reading to its end; cancelling the task ends the reading, and stops its batch."""
    import asyncio  # not with the engine: most who import it have no event loop

    loop = asyncio.get_running_loop()
    over = asyncio.Event()

    def wake() -> None:
        with suppress(RuntimeError):  # a closed loop has nobody who waits
            loop.call_soon_threadsafe(over.set)

    try:
        driver.start_reading(reading, wake)
        await over.wait()
    except BaseException:
        driver.cancel_reading(reading)
        raise
