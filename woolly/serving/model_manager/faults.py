"""Faults: models whose device has failed."""

from __future__ import annotations

from woolly.errors import DeviceError
from woolly.serving.errors import device_failed
from woolly.serving.observability.logs import log


class Faults:
    """Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._sentences: dict[str, str] = {}

    def note(self, name: str, error: DeviceError, *, will_restart: bool) -> None:
        """Remembers that the device of a model has failed."""
        log.error("device failed", extra={"model": name, "reason": error.fault})
        self._sentences[name] = f"{error.fault}; {'the server restarts' if will_restart else 'restart the server'}"

    def forget(self, name: str) -> None:
        """Forgets the fault of a model that is loaded, or that nobody wants."""
        self._sentences.pop(name, None)

    def has(self, name: str) -> bool:
        """Whether the device of a model has failed."""
        return name in self._sentences

    def check(self, name: str) -> None:
        """ApiError 503 if the device of a model has failed."""
        if (sentence := self._sentences.get(name)) is not None:
            raise device_failed(sentence)

    def first(self) -> str | None:
        """Returns what is wrong with the first model that cannot be used; None if all can."""
        return next(iter(self._sentences.values()), None)
