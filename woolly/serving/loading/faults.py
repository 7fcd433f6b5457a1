"""Faults: models whose device has failed, until they are loaded again."""

from __future__ import annotations

from woolly.errors import DeviceError
from woolly.serving.errors import device_failed
from woolly.serving.logs import log

__all__ = ["Faults"]


class Faults:
    """Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._sentences: dict[str, str] = {}

    def note(self, name: str, error: DeviceError) -> None:
        """Remembers that the device of a model has failed, and that the model is loaded again."""
        log.error("device failed", extra={"model": name, "reason": error.fault})
        self._sentences[name] = f"{error.fault}; {name} is loaded again"

    def stay(self, name: str, reason: str) -> None:
        """Remembers that a model could not be loaded again."""
        if (before := self._sentences.get(name)) is not None:
            self._sentences[name] = f"{before}, but that failed: {reason}; restart the server"

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
