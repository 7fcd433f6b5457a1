"""Logs: one line per event with the request's id; never a key, and a prompt only where the operator asked for it."""

from __future__ import annotations

import json
import logging
import sys
import time
from contextvars import ContextVar
from typing import Any

__all__ = ["log", "request_id", "set_up_logs"]

log = logging.getLogger("woolly.serving")

# The id of the request that the current task answers; "-" outside of one.
request_id: ContextVar[str] = ContextVar("woolly_request_id", default="-")

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class _Formatter(logging.Formatter):
    """`extra` fields become fields of the line."""

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
    """What a client sent may hold line ends or terminal codes; a line of the log stays one."""
    text = value if isinstance(value, str) else f"{value:.3f}" if isinstance(value, float) else str(value)
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def set_up_logs(level: str, as_json: bool) -> None:
    """Sends the logs of the server and of uvicorn to standard error."""
    handler = logging.StreamHandler(sys.__stderr__)
    handler.setFormatter(_Formatter(as_json))
    for name in ("woolly", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level.upper())
    # uvicorn's own chatter about starting and connections says nothing that ours does not.
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, logging.getLogger("woolly").level))
    logging.getLogger("uvicorn.access").handlers = []
