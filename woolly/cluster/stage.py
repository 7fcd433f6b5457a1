"""Stage: a process that computes some layers of a model for an engine (pipeline parallelism)."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from woolly.cluster.stage_session import StageSession
from woolly.errors import DeviceError, RequestError, StageError
from woolly.gguf import open_gguf
from woolly.machine.memory import available_memory
from woolly.models import trace
from woolly.plan.passes import slice_layers
from woolly.plan.serialize import plan_digest, steps_to_data
from woolly.runtime import (
    ARITHMETIC_VERSION,
    Batch,
    Options,
    Program,
    backend_for,
    find_gpu,
    get_backend,
    is_gpu_backend,
    pages_for,
    parse_devices,
    parse_size,
)
from woolly.store import resolve
from woolly.store.file_digest import digest_of
from woolly.wire import Connection, WireMessage, greeted, hang_up

_PROBE_ROWS = 40


@dataclass(frozen=True)
class CompiledLayers:
    """Compiled layers of the model."""

    wanted: dict[str, Any]  # request of the engine
    program: Program
    probe: str  # digest of the output for fixed rows


class Stage:
    """Serves one engine process at a time, which requests layers.

    Compiled layers remain after the connection ends, so an engine that reconnects with the same request finds the
    weights in memory. Pages and slots are freed with the connection.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        token: bytes,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        threads: int | None = None,
        weight_memory: int | str | None = None,
        device: str | None = None,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Open the model, by path or by its pulled name, and the port (0: any free port).

        `device` is as in `LLM`; None selects the device that the engine requests. `report` receives a line for each
        opened, ended or rejected connection.
        """
        self._options = Options(threads, parse_size("weight_memory", weight_memory), device=device)
        _free_memory(device)  # DeviceError or RequestError if the device does not exist
        self._token = token
        self.report = report
        self.file = open_gguf(resolve(model))
        try:
            self._digest = digest_of(self.file.paths)
            self._listener = _listen(host, port)
        except BaseException:
            self.file.close()
            raise
        self._lock = threading.Lock()
        self._sessions: set[StageSession] = set()
        self._owner: StageSession | None = None
        self._part: CompiledLayers | None = None
        self._is_closed = False

    @property
    def address(self) -> tuple[str, int]:
        """Listening host and port."""
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    def serve(self) -> None:
        """Accept connections until `close`, with a thread per connection."""
        for connection, host in greeted(self._listener, self._token, self._is_over, self.report, self._refused):
            threading.Thread(target=self._handle, args=(connection, host), daemon=True).start()

    def close(self) -> None:
        """End the connections, and free weights and file. Any thread may call it."""
        with self._lock:
            self._is_closed = True
            sessions = tuple(self._sessions)
        hang_up(self._listener)  # wakes `serve`
        for session in sessions:
            session.end()
        for session in sessions:
            session.over.wait()
        if self._part is not None:
            self._part.program.close()
            self._part = None
        self.file.close()

    def claim(self, session: StageSession, instance: str) -> None:
        """Assign the stage to a session; raise StageError if it is assigned to another engine.

        An engine may reconnect before its lost connection is detected. The old session of the engine is then ended.
        """
        with self._lock:
            owner = self._owner
            if owner in (None, session):
                self._owner = session
                session.instance = instance
                return
        assert owner is not None
        if owner.instance != instance:
            raise StageError("the stage is in use by another engine", code="busy")
        owner.end()
        owner.over.wait()
        self.claim(session, instance)

    def part(self, wanted: dict[str, Any]) -> CompiledLayers:
        """Return the requested layers, compiled. Raise StageError if the model does not match."""
        if self._part is not None and self._part.wanted == wanted:
            return self._part
        if wanted.get("arithmetic") != ARITHMETIC_VERSION:
            raise StageError(
                f"the stage has arithmetic {ARITHMETIC_VERSION}, but the engine has {wanted.get('arithmetic')}; install"
                " the same version of Woolly",
                code="refused",
            )
        if wanted.get("model") != self._digest:
            raise StageError(
                f"the stage has {self.file.path.name}, which differs from the engine's model; use the same file",
                code="refused",
            )
        plan = trace(self.file, ctx=wanted["ctx"])
        first, last = wanted["layers"]
        plan = slice_layers(plan, first, last)
        if plan_digest(plan) != wanted["plan"]:
            raise StageError(
                "the stage plans this model differently; install the same version of Woolly", code="refused"
            )
        try:
            backend = backend_for(self._options.device, wanted["backend"])
        except RequestError:
            raise StageError(
                f"the stage was started with --device {self._options.device}, but the engine uses backend"
                f" {wanted['backend']}; start the engine with --backend {backend_for(self._options.device)}, or the"
                " stage without --device",
                code="refused",
            ) from None
        if self._part is not None:  # free its memory first
            self._part.program.close()
            self._part = None
        options = replace(self._options, kv_type=wanted["kv_type"], level=wanted["level"], max_rows=wanted["max_rows"])
        program = get_backend(backend).compile(plan, self.file.tensors, options)
        program.load_weights()
        self._part = CompiledLayers(wanted, program, _probe(program))
        self.report(f"loaded layers {first} to {last}")
        return self._part

    def _is_over(self) -> bool:
        return self._is_closed

    def _refused(self, host: str, reason: str) -> None:
        self.report(f"rejected {host}: {reason}")

    def _handle(self, connection: Connection, host: str) -> None:
        session = StageSession(self, connection)
        with self._lock:
            is_late = self._is_closed
            if not is_late:
                self._sessions.add(session)
        if is_late:
            connection.close()
            return
        self.report(f"connected to {host}")
        try:
            connection.send(WireMessage("welcome", {"memory": self._memory()}))
            session.run()
        except (ConnectionError, DeviceError) as error:
            self.report(f"disconnected from {host}: {error}")
        finally:
            connection.close()
            with self._lock:
                self._sessions.discard(session)
                if self._owner is session:
                    self._owner = None
            session.over.set()

    def _memory(self) -> int:
        """Return the memory for layers: free bytes plus the bytes of the currently loaded layers."""
        part, free = self._part, _free_memory(self._options.device)
        is_on_gpu = part is not None and is_gpu_backend(part.program.about.backend)
        if part is None or is_on_gpu != is_gpu_backend(backend_for(self._options.device)):
            return free
        return free + part.program.weight_stats().n_bytes

    def opened(self, part: CompiledLayers) -> WireMessage:
        """Return the description of the requested layers."""
        program = part.program
        fields = {
            "probe": part.probe,
            "steps": steps_to_data(program.running_plan.steps),
            "about": asdict(program.about),
        }
        return WireMessage("done", fields)


def _free_memory(device: str | None) -> int:
    """Return the free memory of the named GPUs, or else of the machine."""
    gpus = parse_devices(device) if is_gpu_backend(backend_for(device)) else ()
    kind = backend_for(device)
    return sum(find_gpu(number, kind).usable for number in dict.fromkeys(gpus)) if gpus else available_memory()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise RequestError(f"cannot listen at {host}:{port}: {error.strerror or error}", field="listen") from None


def _probe(program: Program) -> str:
    """Return a digest of the output for fixed rows, which reveals different bits."""
    n_rows = min(_PROBE_ROWS, program.max_rows)
    tokens = [(i * 7919 + 13) % 97 for i in range(n_rows)]
    plan = program.plan
    batch = Batch.of([(tokens, 0, range(pages_for(n_rows)))], slots=[(-1, 0)] if plan.slots else None)
    first = plan.steps[0]
    if first.op == "hidden":
        width = plan.values[first.output].width
        # Integer quotients, because the last bit of other functions can depend on the machine.
        rows = (np.arange(n_rows * width, dtype=np.int64) * 7919 + 13) % 2001 - 1000
        hidden = (rows.astype(np.float32) / np.float32(1000)).reshape(n_rows, width)
        batch = Batch.from_arrays({**batch.arrays(), "hidden": hidden}, is_hidden_normed=True)
    state = program.new_state(pages_for(n_rows), 1 if plan.slots else 0)
    return hashlib.blake2b(program.run(batch, state).tobytes(), digest_size=16).hexdigest()
