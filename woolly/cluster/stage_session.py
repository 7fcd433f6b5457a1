"""StageSession: requests of an engine to a stage, from the handshake to the end of the connection."""

from __future__ import annotations

import queue
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from woolly.errors import PlanError, RequestError, WoollyError
from woolly.runtime import Batch, CancelledRun, PortableState, Program, State
from woolly.wire import Connection, LostConnection, WireMessage

if TYPE_CHECKING:
    from woolly.cluster.stage import Stage

_BEAT = 2.0  # seconds between `alive` messages of a computing stage
_AGAIN = 0.02  # seconds between repeated calls of `cancel`, because a run clears the flag when it starts


class StageSession:
    """Session of an engine. One thread reads messages; another thread handles them in order.

    The reader thread sends `alive` while the other thread computes, and cancels a run at the request of the engine.
    """

    def __init__(self, stage: Stage, connection: Connection) -> None:
        self._stage = stage
        self._connection = connection
        self.instance = ""  # instance id of the engine
        self._program: Program | None = None
        self._states: dict[int, State] = {}
        self._times: ExitStack | None = None
        self._timed: list[int] = []
        self._jobs: queue.SimpleQueue[WireMessage | None] = queue.SimpleQueue()
        self._is_working = False
        self._is_cancelled = False
        self._beaten = time.monotonic()
        self.over = threading.Event()  # set when the session has ended

    def run(self) -> None:
        """Serve the engine until its connection ends, which raises LostConnection."""
        worker = threading.Thread(target=self._work, daemon=True)
        worker.start()
        try:
            while True:
                message = self._connection.receive(self._beat)
                if message.kind == "cancel":
                    self._is_cancelled = True
                    if self._program is not None:
                        self._program.cancel()
                else:
                    self._is_working, self._is_cancelled = True, False
                    self._jobs.put(message)
        finally:
            self._jobs.put(None)
            while worker.is_alive():
                self._is_cancelled = True
                if self._program is not None:
                    self._program.cancel()
                worker.join(_AGAIN)
            self._states.clear()

    def end(self) -> None:
        """End the connection and the session. Any thread may call it."""
        self._connection.close()

    def _beat(self, silence: float) -> None:
        if self._is_working and time.monotonic() - self._beaten > _BEAT:
            self._beaten = time.monotonic()
            self._connection.send(WireMessage("alive"))

    def _work(self) -> None:
        while (message := self._jobs.get()) is not None:
            self._is_working = True  # a message without a reply may have finished in the meantime
            try:
                reply = self._answer(message)
            except Exception as error:
                reply = _error(error)
            try:
                # Before sending the reply, because the next message may follow immediately.
                self._is_working = False
                if reply is not None:
                    self._connection.send(reply)
            except LostConnection:
                self.end()  # the reader thread notices it
        if self._times is not None:
            self._times.close()

    def _answer(self, message: WireMessage) -> WireMessage | None:
        fields = message.fields
        match message.kind:
            case "open":
                wanted = dict(fields)
                self._stage.claim(self, wanted.pop("instance"))
                part = self._stage.part(wanted)
                self._program = part.program
                return self._stage.opened(part)
            case "state":
                return self._make_state(fields)
            case "free":
                self._states.pop(fields["state"], None)
                return None
            case "run":
                return self._run(message)
            case "read" | "write":
                return self._copy(message)
            case "time":
                return self._time(bool(fields["on"]))
        raise PlanError(f"unknown message {message.kind!r}")

    @property
    def program(self) -> Program:
        """Program of the opened layers."""
        if self._program is None:
            raise PlanError("no layers are open; send `open` first")
        return self._program

    def _make_state(self, fields: Any) -> WireMessage:
        state = self.program.new_state(fields["n_pages"], fields["n_slots"], fields["window_pages"])
        self._states[fields["state"]] = state
        pages = list(state.page_sizes) if isinstance(state, PortableState) else [state.page_bytes]
        return WireMessage("done", {"sizes": [pages, state.slot_bytes, state.n_bytes]})

    def _run(self, message: WireMessage) -> WireMessage:
        fields, stats = message.fields, self.program.weight_stats
        batch = Batch.from_arrays(message.arrays, fields["is_hidden_normed"])
        if self._is_cancelled:
            return WireMessage("done")
        self._stage.file.check()
        try:
            value = self.program.run(batch, self._states[fields["state"]], fields["first"], fields["last"])
        except CancelledRun:
            return WireMessage("done")
        self._stage.file.check()
        return WireMessage("done", {"weights": list(vars(stats()).values())}, {"value": value})

    def _copy(self, message: WireMessage) -> WireMessage:
        fields, state = message.fields, self._states[message.fields["state"]]
        if not isinstance(state, PortableState):
            raise RequestError("this backend does not support copying pages")
        number, table = fields["number"], fields.get("table")  # slots have no table
        if message.kind == "read":
            data = state.read_slot(number) if table is None else state.read_page(number, table)
            return WireMessage("done", arrays={"bytes": data})
        if table is None:
            state.write_slot(number, message.arrays["bytes"])
        else:
            state.write_page(number, message.arrays["bytes"], table)
        return WireMessage("done")

    def _time(self, is_on: bool) -> WireMessage:
        if self._times is not None:
            self._times.close()
            self._times = None
        if is_on:
            self._times = ExitStack()
            self._timed = self._times.enter_context(self.program.timed())
        return WireMessage("done", {"times": [int(n) for n in self._timed]})


def _error(error: Exception) -> WireMessage:
    """Return the error as a message, for the engine to raise."""
    fields: dict[str, Any] = {"type": type(error).__name__, "message": str(error)}
    if isinstance(error, WoollyError):
        fields["code"] = error.code
    else:
        fields["message"] = f"{type(error).__name__}: {error}"
    if isinstance(error, RequestError):
        fields |= {"field": error.field, "names": list(error.names)}
    return WireMessage("error", fields)
