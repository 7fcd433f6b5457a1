"""Life cycle of the HTTP server: load, serve, drain and stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from woolly.errors import RequestError
from woolly.machine.restart import can_restart, end_left_children, inherited_socket, restart
from woolly.serving.dialects.ole.store import check_sessions_file
from woolly.serving.errors import ApiError
from woolly.serving.gate.connection_timeouts import connection_class, socket_class
from woolly.serving.lifecycle.app import create_app
from woolly.serving.lifecycle.certificate import certificate_of
from woolly.serving.lifecycle.reload import Reloader, has_terminal
from woolly.serving.model_manager.manager import NO_MODEL
from woolly.serving.observability.logs import log
from woolly.serving.settings.table import Settings

_KEEP_ALIVE = 15  # seconds that an idle connection stays open
_HANDSHAKE = 5.0  # maximum seconds for a TLS handshake; until then --max-connections does not count the connection
_LAST_WORDS = 2.0  # seconds for cancelled replies to send an error
_LAST_BYTES = 0.2  # seconds to send the last bytes of finished replies
_CLOSING = 2.0  # seconds for models and threads to end afterwards
_LOOK = 2.0  # seconds between checks for changed key or certificate files
_SPARE_FILES = 256  # file descriptors for models, the log and the database, in addition to connections


def run(
    settings: Settings, end: Callable[[int], Any] | None = None, prepare: Callable[[FastAPI], None] | None = None
) -> int:
    """Serve until a signal arrives, and return the exit code.

    Raises RequestError or StoreError if the server cannot start. `end` ends the process immediately with an exit code,
    as `os._exit` does. `end` is called at the second signal, and if a thread does not end, because threads cannot be
    cancelled. Without `end`, the interpreter waits for the thread. `prepare` is called with the app before it serves.
    The caller must set up the logs.
    """
    _outlive_clients()
    end_left_children()
    n_connections = _fit_connections(settings.max_connections)
    certificate = certificate_of(settings)
    # Here, because an error in the app's lifespan would end the process with uvicorn's traceback.
    check_sessions_file(settings.sessions_path)
    app = create_app(settings)
    if app.state.authenticator.issuer is not None:
        app.state.authenticator.issuer.refresh()
    if prepare is not None:
        prepare(app)
    listener = _listen(settings.host, settings.port)
    host, port = listener.getsockname()[:2]
    _warn_if_public(settings, host)
    _warn_about_unused_keys(settings)
    config = uvicorn.Config(
        app,
        http=connection_class(n_connections, settings.timeout),
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
    config.load()
    config.ssl = None if certificate is None else certificate.context  # uvicorn's own context cannot be reloaded
    server = _Server(config, app, settings, listener, end)
    if certificate is not None:
        server.reloader.add("certificate", certificate.files, certificate.read)
        log.info("certificate", extra={"file": str(certificate.files[0]), "sha256": certificate.fingerprint})
    _handle_sighup(server)
    log.info("listening", extra={"url": _url(host, port, settings)})
    server.run(sockets=[listener])
    log.info("stopped", extra={"clean": server.failure is None})
    if server.failure is not None:
        raise server.failure
    return 0


class _Server(uvicorn.Server):
    """uvicorn server that replies to health requests while it drains."""

    def __init__(
        self,
        config: uvicorn.Config,
        app: FastAPI,
        settings: Settings,
        listener: socket.socket,
        end: Callable[[int], Any] | None,
    ) -> None:
        super().__init__(config)
        self._listener = listener
        self._state = app.state
        self._settings = settings
        self._end = end
        self._pool = ThreadPoolExecutor(thread_name_prefix="woolly-pool")
        self._tasks: list[asyncio.Task[None]] = []
        self._is_stopping = False
        self._is_restarting = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self.failure: Exception | None = None
        self.reloader = Reloader(settings, app.state.authenticator)
        self._had_terminal = sys.platform != "win32" and has_terminal()
        if end is not None:
            app.state.models.on_device_failure = self._start_restart

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the port before models are loaded, so that health routes can report the loading."""
        self._loop = asyncio.get_running_loop()
        if self.config.ssl is not None:
            # uvicorn has no option for this. asyncio would wait a minute for a client that sends nothing, and the
            # connection is not counted before the handshake ends.
            seconds = min(self._settings.timeout, _HANDSHAKE)
            opens = partial(self._loop.create_server, ssl_handshake_timeout=seconds)
            self._loop.create_server = opens  # type: ignore[method-assign]
        await super().startup(sockets)
        self._loop.set_default_executor(self._pool)
        self._loop.set_exception_handler(_LoopErrors())
        self._tasks.append(asyncio.create_task(self._load()))
        self._tasks.append(asyncio.create_task(self._unload_idle()))
        if self.reloader.is_needed:
            self._tasks.append(asyncio.create_task(self._reload_changed_files()))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Cancel running answers and shut down as uvicorn does; end the process if threads are still running."""
        for task in self._tasks:
            task.cancel()
        self._state.health.set("draining", "the server is about to stop")
        self._state.generator.stop()
        await super().shutdown(sockets)
        self._pool.shutdown(wait=False, cancel_futures=True)
        until = time.monotonic() + _CLOSING
        while (self.server_state.connections or _working()) and time.monotonic() < until:
            await asyncio.sleep(0.02)
        if self._end is not None and (working := _working()):
            log.warning("stopped", extra={"clean": False, "threads_at_work": ", ".join(working)})
            self._end(0 if self.failure is None else 1)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal, end the process at the second. The exit code is 0 if no answer is interrupted."""
        if self._is_stopping:
            self.force_exit = self.should_exit = True
            if self._end is not None:
                self._end(128 + sig if self._state.generator.admission.n_open else 0)
            return
        self._is_stopping = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._start_draining)
        else:
            self.should_exit = True

    def handle_hangup(self, sig: int, frame: FrameType | None) -> None:
        """Reload key and certificate files. Stop if the terminal is closed or there are no files to reload."""
        is_gone = self._had_terminal and not has_terminal()
        if is_gone or not self.reloader.is_needed or self._loop is None:
            self.handle_exit(sig, frame)
        else:
            self.handle_reload(sig, frame)

    def handle_reload(self, sig: int, frame: FrameType | None) -> None:
        """Reload key and certificate files on the event loop, because signal handlers run between arbitrary lines."""
        if self._loop is not None:  # otherwise `_reload_changed_files` will see the change
            self._loop.call_soon_threadsafe(self.reloader.reload)

    async def _reload_changed_files(self) -> None:
        while True:
            await asyncio.sleep(_LOOK)
            self.reloader.check()

    def _start_draining(self) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(self._drain()))

    def _start_restart(self) -> bool:
        """Return True if the process restarts.

        The process must have been ready, and must not have restarted repeatedly.
        """
        if not self._is_restarting and self._state.health.is_ready and can_restart():
            self._is_restarting = True
            self._tasks.append(asyncio.get_running_loop().create_task(self._restart()))
        return self._is_restarting

    async def _restart(self) -> None:
        """Restart the process when all answers have ended, or after the grace period."""
        state = self._state
        end = asyncio.get_running_loop().time() + self._settings.grace
        while state.generator.admission.n_open and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.05)
        if self._is_stopping:
            return
        state.generator.stop()
        await state.batches.stop()
        end = asyncio.get_running_loop().time() + _LAST_WORDS
        while state.generator.admission.n_open and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.01)  # interrupted answers count their usage
        await asyncio.sleep(_LAST_BYTES)  # time to send the errors of interrupted replies
        if state.meter.ledger is not None:
            await state.meter.ledger.flush()  # the new process reads today's usage from the ledger
        if not self._is_stopping:
            log.warning("restarting the server, because a failed GPU cannot be used again in the same process")
            try:
                restart(self._listener)
            except OSError as error:
                log.error("the server cannot restart", extra={"reason": error.strerror or str(error)})
                assert self._end is not None
                self._end(1)  # immediately, because files used by the event loop may be closed

    async def _load(self) -> None:
        models = self._state.models
        names = [*([models.main] if models.main is not None else []), *self._settings.preload]
        name = ""
        try:
            for name in dict.fromkeys(names):
                await models.load(name)
        except ApiError as error:
            message = error.message if name == models.main else f"--preload {name}: {error.message}"
            if error.code == "insufficient_memory" and error.suggestion is not None:  # others are meant for clients
                message = f"{message}; {error.suggestion}"
            self._state.health.set("failed", message)
            # The cause has the flag as the user typed it.
            told = error.__cause__ if isinstance(error.__cause__, RequestError) else RequestError(message)
            self.failure = told.with_message(message, RequestError)
            self.should_exit = True
            return
        if not self._is_stopping:
            if self._settings.webui:
                host, port = self._listener.getsockname()[:2]
                log.info(f"open {_url(_reachable(host), port, self._settings)} in your browser")
            self._state.health.set("ready")
            log.info("ready")
            if not await models.has_any():
                log.warning(NO_MODEL)
            self._state.batches.wake()  # resume unfinished batches

    async def _unload_idle(self) -> None:
        while True:
            await asyncio.sleep(min(5.0, self._settings.keep_alive / 4 or 5.0))
            with contextlib.suppress(ApiError):
                await self._state.models.unload_idle()

    async def _drain(self) -> None:
        """Admit no further answers; running answers have the grace period to finish."""
        state = self._state
        state.health.set("draining", "the server is about to stop")
        state.generator.admission.is_draining = True
        log.info("draining", extra={"answers": state.generator.admission.n_open, "grace": self._settings.grace})
        end = asyncio.get_running_loop().time() + self._settings.grace
        while state.generator.admission.n_open and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.05)
        self.should_exit = True


def _listen(host: str, port: int) -> socket.socket:
    if (given := inherited_socket()) is not None:
        given.setblocking(False)
        return given
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio disables Nagle's algorithm only if the protocol is set. With Nagle, each event of a stream waits for the
    # client's acknowledgement of the previous event, which kernels delay by 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    if sys.platform != "win32":  # on Windows it would let two servers share a port
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
    if not settings.has_keys and not host.startswith("127.") and host != "::1":
        log.warning(
            "ANYONE WHO CAN REACH THIS ADDRESS CAN USE THIS SERVER: it accepts remote connections without a key;"
            " set --keys-file or --api-key-file, or --host 127.0.0.1",
            extra={"host": host},
        )


def _warn_about_unused_keys(settings: Settings) -> None:
    """Log that the file which `woolly keys add` wrote is not in use."""
    from woolly.serving.accounts.keys_file import default_file

    if settings.keys_file is None and (file := default_file()).is_file():
        log.warning(f"this server does not use the API keys in {file}: add --keys-file {file}")


def _outlive_clients() -> None:
    """Ignore SIGPIPE, so that writing to a closed connection raises an error instead of ending the process."""
    if sys.platform != "win32" and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def _handle_sighup(server: _Server) -> None:
    """Handle SIGHUP (terminal closed) as SIGTERM, unless `nohup` makes the process ignore it.

    If there are files to reload, SIGHUP reloads them while the terminal is open, even under `nohup`.
    """
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, server.handle_hangup)
    elif server.reloader.is_needed:
        signal.signal(signal.SIGHUP, server.handle_reload)


def _fit_connections(wanted: int) -> int:
    """Return `wanted` connections, or fewer with a warning if the limit of open files is too low."""
    if sys.platform == "win32":  # Windows has no such limit on sockets
        return wanted
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted + _SPARE_FILES:
        limit = wanted + _SPARE_FILES if hard == resource.RLIM_INFINITY else min(wanted + _SPARE_FILES, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            soft = limit
        fitting = max(1, soft - min(_SPARE_FILES, soft // 2))
        if fitting < wanted:
            log.warning("max_connections is lowered to fit the file limit", extra={"to": fitting, "file_limit": soft})
            return fitting
    return wanted


def _working() -> list[str]:
    """Return the names of threads that block the exit of the interpreter or whose memory it would free."""
    threads = (thread for thread in threading.enumerate() if thread is not threading.main_thread())
    return [thread.name for thread in threads if not thread.daemon or thread.name.startswith("woolly-")]


class _LoopErrors:
    """Logs errors of the event loop; failures to accept connections at most once a second.

    Without a free file descriptor, asyncio retries every waiting connection and reports every failure.
    """

    def __init__(self) -> None:
        self._next = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or "accept" not in context.get("message", ""):
            loop.default_exception_handler(context)
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + 1.0
            log.error("a connection could not be accepted", extra={"reason": error.strerror})


def _url(host: str, port: int, settings: Settings) -> str:
    scheme = "https" if settings.has_tls else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _reachable(host: str) -> str:
    """Return an address through which this machine can reach the server."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
