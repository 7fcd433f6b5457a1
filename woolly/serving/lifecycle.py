"""The life of a server: it loads, serves, drains and ends."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
import threading
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from woolly.errors import RequestError
from woolly.serving.app import create_app
from woolly.serving.connections import connection_class, socket_class
from woolly.serving.errors import ApiError
from woolly.serving.logs import log, set_up_logs
from woolly.serving.settings import Settings

__all__ = ["run"]

_KEEP_ALIVE = 15  # seconds that an idle connection is kept for a further request
_LAST_WORDS = 2.0  # seconds for replies to be told that they were cancelled
_SPARE_FILES = 256  # beside connections: models, the log, the database


def run(settings: Settings) -> int:
    """Serves until told to stop; gives the exit code. RequestError or StoreError for what cannot be served."""
    set_up_logs(settings.log_level, settings.log_format == "json")
    _outlive_clients()
    _raise_file_limit(settings.max_connections)
    app = create_app(settings)
    listener = _listen(settings.host, settings.port)
    host, port = listener.getsockname()[:2]
    _warn_if_public(settings, host)
    config = uvicorn.Config(
        app,
        http=connection_class(settings.max_connections, settings.timeout),
        ws=socket_class(settings.timeout),
        ws_max_size=min(settings.max_body_bytes, 1 << 20),
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=int(_LAST_WORDS),
        backlog=2048,
    )
    server = _Server(config, app, settings)
    log.info("listening", extra={"url": f"http://{f'[{host}]' if ':' in host else host}:{port}"})
    server.run(sockets=[listener])
    log.info("stopped", extra={"clean": server.failure is None})
    if server.failure is not None:
        raise server.failure
    return 0


class _Server(uvicorn.Server):
    """uvicorn's server that keeps answering while it drains."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, settings: Settings) -> None:
        super().__init__(config)
        self._state = app.state
        self._settings = settings
        self._tasks: list[asyncio.Task[None]] = []
        self._is_told = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self.failure: Exception | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Opens the port first: health tells that models are being loaded."""
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        self._tasks.append(asyncio.create_task(self._load()))
        if self._settings.keep_alive:
            self._tasks.append(asyncio.create_task(self._unload_idle()))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """What still runs is told and ends; then the rest as uvicorn does it."""
        for task in self._tasks:
            task.cancel()
        self._state.generator.stop()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, the second ends at once."""
        if self._is_told:
            self.force_exit = sig == signal.SIGINT
            self.should_exit = True
            return
        self._is_told = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._begin_to_drain)
        else:
            self.should_exit = True

    def _begin_to_drain(self) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(self._drain()))

    async def _load(self) -> None:
        models = self._state.models
        names = [*([models.main] if models.main is not None else []), *self._settings.preload]
        try:
            for name in dict.fromkeys(names):
                await models.load(name)
        except ApiError as error:
            self._state.health.set("failed", error.message)
            self.failure = RequestError(error.message)
            self.should_exit = True
            return
        if not self._is_told:
            self._state.health.set("ready")
            log.info("ready")

    async def _unload_idle(self) -> None:
        while True:
            await asyncio.sleep(min(5.0, self._settings.keep_alive / 4))
            with contextlib.suppress(ApiError):
                await self._state.models.unload_idle()

    async def _drain(self) -> None:
        """No further answers are begun; those that run get the grace period."""
        state = self._state
        state.health.set("draining", "the server is about to stop")
        state.generator.admission.is_draining = True
        log.info("draining", extra={"answers": state.generator.admission.n_open, "grace": self._settings.grace})
        end = asyncio.get_running_loop().time() + self._settings.grace
        while state.generator.admission.n_open and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.05)
        self.should_exit = True


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio switches Nagle's algorithm off only where the protocol is named; with it, the events of a stream wait for
    # the client's acknowledgement of the one before, which kernels hold back for 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    if sys.platform != "win32":  # where it would let two servers share a port
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        raise RequestError(f"cannot listen at {host} port {port} ({reason}): choose another --host or --port") from None
    listener.setblocking(False)
    return listener


def _warn_if_public(settings: Settings, host: str) -> None:
    if not settings.keys and not host.startswith("127.") and host != "::1":
        log.warning(
            "ANYONE WHO CAN REACH THIS ADDRESS CAN USE THIS SERVER: it listens beyond this machine and asks for no key;"
            " give --api-key or --api-key-file, or --host 127.0.0.1",
            extra={"host": host},
        )


def _outlive_clients() -> None:
    """Has a write to a client that is gone fail; it would end the process, as is right for a command's output."""
    if sys.platform != "win32" and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def _raise_file_limit(n_connections: int) -> None:
    if sys.platform == "win32":  # which has no such limit on sockets
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted: Any = n_connections + _SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
