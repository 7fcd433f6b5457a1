"""Logging: one line per event with the request id, without keys, and without prompts unless --log-prompts is set."""

from __future__ import annotations

import json
import logging
import sys
import time
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from woolly.errors import RequestError

log = logging.getLogger("woolly.serving")

# Request id of the current task; "-" outside of a request.
request_id: ContextVar[str] = ContextVar("woolly_request_id", default="-")

# Ignored fields of the current task's request, for its x-woolly-ignored header and log line.
ignored: ContextVar[list[str] | None] = ContextVar("woolly_ignored", default=None)

_LEVELS: dict[str, int | str] = {"off": logging.CRITICAL + 1}  # other levels have the names of logging
_MAX_IGNORED = 20  # names per request
_MAX_NAME_LENGTH = 120  # characters per name

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


def ignore(what: str) -> None:
    """Record a field of the current request that has no effect."""
    noted = ignored.get()
    name = what.encode("unicode_escape").decode("ascii")[:_MAX_NAME_LENGTH]
    if name != name.strip() or not name:
        name = f'"{name}"'  # header values cannot begin or end with a space
    if noted is not None and len(noted) < _MAX_IGNORED and name not in noted:
        noted.append(name)


class _Formatter(logging.Formatter):
    """Formats `extra` fields as key=value pairs or JSON."""

    def __init__(self, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z"
        fields: dict[str, Any] = {
            "time": stamp,
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "request": getattr(record, "request", None) or request_id.get(),
        }
        fields |= {key: value for key, value in vars(record).items() if key not in _PLAIN and key != "request"}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        if self._as_json:
            return json.dumps(fields, ensure_ascii=True, default=str)
        head = f"{stamp} {fields['level']:7} {fields['request']} {_one_line(fields['event'])}"
        rest = " ".join(f"{key}={_one_line(value)}" for key, value in list(fields.items())[4:] if value is not None)
        return f"{head} {rest}".rstrip()


def _one_line(value: Any) -> str:
    """Escape line breaks and terminal codes that a client may have sent."""
    text = value if isinstance(value, str) else f"{value:.3f}" if isinstance(value, float) else str(value)
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def set_up_logs(level: str, as_json: bool, file: Path | None = None) -> None:
    """Send the logs of the server and of uvicorn to standard error or a file.

    Raises RequestError if the file is not writable. A second call replaces the first.
    """
    try:
        handler = logging.StreamHandler(sys.__stderr__) if file is None else logging.FileHandler(file, encoding="utf-8")
    except OSError as error:
        raise RequestError(f"cannot write log_file {file}: {error.strerror}", field="log_file") from None
    handler.setFormatter(_Formatter(as_json))
    for earlier in logging.getLogger("woolly").handlers:
        if isinstance(earlier, logging.FileHandler):
            earlier.close()
    for name in ("woolly", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(_LEVELS.get(level, level.upper()))
    # uvicorn's messages about startup and connections repeat ours.
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, logging.getLogger("woolly").level))
    logging.getLogger("uvicorn.access").handlers = []
