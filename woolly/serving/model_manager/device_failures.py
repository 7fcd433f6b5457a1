"""Record of models whose device has failed."""

from __future__ import annotations

from woolly.errors import DeviceError
from woolly.serving.errors import device_failed
from woolly.serving.observability.logs import log


class DeviceFailures:
    """Error messages of failed devices by model. Use this class only on the event loop thread."""

    def __init__(self) -> None:
        self._messages: dict[str, str] = {}

    def record(self, name: str, error: DeviceError, *, will_restart: bool) -> None:
        """Record that the device of a model has failed."""
        log.error("device failed", extra={"model": name, "reason": error.fault})
        self._messages[name] = f"{error.fault}; {'the server restarts' if will_restart else 'restart the server'}"

    def clear(self, name: str) -> None:
        """Remove the failure of a model that was reloaded or unloaded."""
        self._messages.pop(name, None)

    def has(self, name: str) -> bool:
        """Return True if the device of a model has failed."""
        return name in self._messages

    def check(self, name: str) -> None:
        """Raise ApiError 503 if the device of a model has failed."""
        if (message := self._messages.get(name)) is not None:
            raise device_failed(message)

    def first_message(self) -> str | None:
        """Return the first error message, or None if no device has failed."""
        return next(iter(self._messages.values()), None)
