"""Place: client of the stage that runs some layers of a model."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from woolly import errors
from woolly.errors import RequestError, StageError, WoollyError
from woolly.plan.plan import Step
from woolly.plan.serialize import steps_from_data
from woolly.runtime.program import About, CancelledRun, WeightStats
from woolly.runtime.stage_addresses import Address
from woolly.wire import Connection, LostConnection, RejectedConnection, WireMessage

Float32 = npt.NDArray[np.float32]

_DIAL = 5.0  # connection timeout in seconds, per address
# A busy stage sends a message every two seconds.
SILENCE = 15.0  # seconds without a message after which a stage is lost


class StageClient:
    """One part of the model.

    LostConnection from any method means that the stage and its state are lost. `is_connected` is then False.
    """

    def __init__(self, addresses: tuple[Address, ...], token: bytes, instance: str) -> None:
        """`instance` identifies this process to the stage, which serves one client at a time."""
        self._addresses = addresses
        self._token = token
        self._instance = instance
        self._connection: Connection | None = None
        self._probe: str | None = None  # probe result that every stage of this part must reproduce
        self.address = addresses[0]
        self.memory = 0  # bytes available to the stage for weights and cache
        self.steps: tuple[Step, ...] = ()
        self.about = About("", None, 0, 0)
        self.weights = WeightStats(0, 0, 0, 0)

    def __str__(self) -> str:
        return f"stage {self.address[0]}:{self.address[1]}"

    @property
    def is_connected(self) -> bool:
        """True if the connection to the stage is open."""
        return self._connection is not None

    def dial(self, go_on: Callable[[], None]) -> None:
        """Connect to the first address that answers. Raises StageError with the reason if there is none."""
        self.drop()
        reasons: list[StageError] = []
        for address in self._addresses:
            self.address = address
            try:
                sock = socket.create_connection(address, timeout=_DIAL)
            except OSError as error:
                reasons.append(StageError(f"{self} cannot be reached: {error.strerror or error}"))
                continue
            try:
                self._connection = Connection(sock, self._token, is_client=True)
                self.memory = int(self._receive(go_on, "welcome").fields["memory"])
                return
            except RejectedConnection as error:
                reasons.append(StageError(f"{self} refuses: {error}", code="refused"))
            except LostConnection as error:
                reasons.append(StageError(f"{self} cannot be reached: {error}"))
            self.drop()
        raise next((reason for reason in reasons if reason.code is None), reasons[-1])

    def open(self, fields: Mapping[str, Any], go_on: Callable[[], None]) -> None:
        """Let the stage compile its part. Raises StageError if its model or result bits differ from before."""
        reply = self.ask(WireMessage("open", {**fields, "instance": self._instance}), go_on)
        probe = str(reply.fields["probe"])
        if self._probe not in (None, probe):
            self.drop()
            raise StageError(
                f"{self} computes other bits than the stage that it replaces; start it with the same kernel level",
                code="refused",
            )
        self._probe = probe
        self.steps = steps_from_data(reply.fields["steps"])
        self.about = About(**reply.fields["about"])

    def ask(self, message: WireMessage, go_on: Callable[[], None]) -> WireMessage:
        """Send a message and return the reply. An error reported by the stage is raised with its original class."""
        self.say(message)
        return self._receive(go_on, "done")

    def run(
        self, fields: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]], is_cancelled: Callable[[], bool]
    ) -> Float32:
        """Run some steps and return the value of the last one. Raises CancelledRun if `is_cancelled` stopped them."""

        def go_on() -> None:
            if is_cancelled():  # repeated, because a run that has not started yet ignores it
                self.say(WireMessage("cancel"))

        reply = self.ask(WireMessage("run", fields, arrays), go_on)
        if "value" not in reply.arrays:
            raise CancelledRun("the computation was cancelled")
        self.weights = WeightStats(*reply.fields["weights"])
        return reply.arrays["value"]

    def say(self, message: WireMessage) -> None:
        """Send a message that needs no reply."""
        if self._connection is None:
            raise LostConnection(f"{self} is not connected")
        try:
            self._connection.send(message)
        except LostConnection:
            self.drop()
            raise

    def drop(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _receive(self, go_on: Callable[[], None], kind: str) -> WireMessage:
        assert self._connection is not None

        def wait(silence: float) -> None:
            if silence > SILENCE:
                raise LostConnection(f"no message for {SILENCE:g} seconds")
            go_on()

        try:
            while (reply := self._connection.receive(wait)).kind == "alive":
                go_on()
            if reply.kind not in (kind, "error"):
                raise LostConnection(f"it replied {reply.kind!r} instead of {kind!r}")
        except BaseException:  # a late reply would be taken for the reply to the next message
            self.drop()
            raise
        if reply.kind == "error":
            raise self._error_of(reply.fields)
        return reply

    def _error_of(self, fields: Mapping[str, Any]) -> Exception:
        """Return the error reported by a stage, with its original class if it is one of Woolly's."""
        kind = getattr(errors, str(fields.get("type")), None)
        message = str(fields.get("message"))
        if kind is RequestError:
            field, names = fields.get("field"), fields.get("names") or ()
            return RequestError(f"{self}: {message}", field=field, code=fields.get("code"), names=tuple(names))
        if isinstance(kind, type) and issubclass(kind, WoollyError):
            return kind(f"{self}: {message}", code=fields.get("code"))
        return StageError(f"{self} failed: {message}")
