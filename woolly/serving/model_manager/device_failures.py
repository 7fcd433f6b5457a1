"""DeviceFailures: models whose device has failed."""

from __future__ import annotations

from woolly.errors import DeviceError
from woolly.serving.errors import device_failed
from woolly.serving.observability.logs import log


class DeviceFailures:
    """Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._messages: dict[str, str] = {}

    def record(self, name: str, error: DeviceError, *, will_restart: bool) -> None:
        """Remembers that the device of a model has failed."""
        log.error("device failed", extra={"model": name, "reason": error.fault})
        self._messages[name] = f"{error.fault}; {'the server restarts' if will_restart else 'restart the server'}"

    def clear(self, name: str) -> None:
        """Forgets the fault of a model that is loaded, or that nobody wants."""
        self._messages.pop(name, None)

    def has(self, name: str) -> bool:
        """Return True if the device of a model has failed."""
        return name in self._messages

    def check(self, name: str) -> None:
        """ApiError 503 if the device of a model has failed."""
        if (message := self._messages.get(name)) is not None:
            raise device_failed(message)

    def first_message(self) -> str | None:
        """Return the error of the first failed model; None without failures."""
        return next(iter(self._messages.values()), None)
