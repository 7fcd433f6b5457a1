"""Wait for a pooling job on an event loop."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from woolly.engine.pooling.job import PoolingJob
    from woolly.engine.threads.driver import EngineDriver


async def wait_for_pooling(driver: EngineDriver, job: PoolingJob) -> None:
    """Run a job to its end. Cancelling the task ends the job and stops its batch."""
    import asyncio  # imported late: most users of the engine have no event loop

    loop = asyncio.get_running_loop()
    over = asyncio.Event()

    def wake() -> None:
        with suppress(RuntimeError):  # a closed loop has no waiting tasks
            loop.call_soon_threadsafe(over.set)

    try:
        driver.start_pooling(job, wake)
        await over.wait()
    except BaseException:
        driver.cancel_pooling(job)
        raise
