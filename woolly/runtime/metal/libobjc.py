"""ObjectiveC: messages to objects of Apple's frameworks, by ctypes: no package is needed but the system.

An object is a number, 0 for none. `send` takes arguments as ctypes has them, because a message says nothing of theirs.
"""

from __future__ import annotations

import ctypes as c
import functools
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from woolly.errors import DeviceError

_LIBRARY = "/usr/lib/libobjc.A.dylib"
_METAL = "/System/Library/Frameworks/Metal.framework/Metal"


class Size(c.Structure):
    """MTLSize: groups of a grid, or threads of a group."""

    _fields_ = [("x", c.c_uint64), ("y", c.c_uint64), ("z", c.c_uint64)]


class Range(c.Structure):
    """NSRange: the first of some bytes, and how many they are."""

    _fields_ = [("first", c.c_uint64), ("n", c.c_uint64)]


class ObjectiveC:
    """The runtime of Objective-C, with Metal."""

    def __init__(self) -> None:
        self._objc, self._metal = c.CDLL(_LIBRARY), c.CDLL(_METAL)
        for function, result, *kinds in (
            (self._objc.sel_registerName, c.c_void_p, c.c_char_p),
            (self._objc.objc_getClass, c.c_void_p, c.c_char_p),
            (self._objc.objc_autoreleasePoolPush, c.c_void_p),
            (self._objc.objc_autoreleasePoolPop, None, c.c_void_p),
            (self._metal.MTLCopyAllDevices, c.c_void_p),
        ):
            function.restype, function.argtypes = result, kinds
        self._address = c.cast(self._objc.objc_msgSend, c.c_void_p).value or 0
        self._selectors: dict[str, int] = {}
        self._senders: dict[tuple[Any, ...], Any] = {}
        self.version = platform.mac_ver()[0]  # of macOS

    def send(self, receiver: int, message: str, *arguments: Any, result: Any = c.c_void_p) -> Any:
        """What an object replies to a message."""
        key = result, *(type(one) for one in arguments)
        sender = self._senders.get(key)
        if sender is None:
            sender = self._senders[key] = c.CFUNCTYPE(result, c.c_void_p, c.c_void_p, *key[1:])(self._address)
        found = sender(receiver, self._selector(message), *arguments)
        return (found or 0) if result is c.c_void_p else found

    def _selector(self, message: str) -> int:
        if message not in self._selectors:
            self._selectors[message] = self._objc.sel_registerName(message.encode())
        return self._selectors[message]

    def find_class(self, name: str) -> int:
        """The class of that name."""
        return int(self._objc.objc_getClass(name.encode()) or 0)

    def responds(self, receiver: int, message: str) -> bool:
        """Whether an object knows a message."""
        selector = c.c_void_p(self._selector(message))
        return bool(self.send(receiver, "respondsToSelector:", selector, result=c.c_bool))

    def attempt(self, receiver: int, message: str, *arguments: Any) -> tuple[int, str]:
        """What an object replies to a message that ends with an error, and the error's text if it replies nothing."""
        error = c.c_void_p()
        found = self.send(receiver, message, *arguments, c.pointer(error))
        return found, "" if found else self.describe(error.value or 0)

    def describe(self, error: int) -> str:
        """The text of an error."""
        return self.text(self.send(error, "localizedDescription")) if error else "no reason is given"

    def text(self, string: int) -> str:
        """A string of Apple's as one of Python's."""
        found = self.send(string, "UTF8String", result=c.c_char_p) if string else None
        return (found or b"").decode(errors="replace")

    def string(self, text: str) -> int:
        """A string of Python's as one of Apple's, which the pool in use frees."""
        found = self.send(self.find_class("NSString"), "stringWithUTF8String:", c.c_char_p(text.encode()))
        return int(found)

    def devices(self) -> list[int]:
        """All GPUs, each kept."""
        array = self._metal.MTLCopyAllDevices() or 0
        n = self.send(array, "count", result=c.c_uint64) if array else 0
        found = [self.send(array, "objectAtIndex:", c.c_uint64(i)) for i in range(n)]
        for one in found:
            self.send(one, "retain")
        if array:
            self.send(array, "release", result=None)
        return found

    @contextmanager
    def pool(self) -> Iterator[None]:
        """Frees at its end what messages gave to nobody: threads of Python have no pool of their own."""
        pool = self._objc.objc_autoreleasePoolPush()
        try:
            yield
        finally:
            self._objc.objc_autoreleasePoolPop(pool)


def open_driver() -> ObjectiveC:
    """The runtime of this process. DeviceError if this is not a Mac, or if it was opened before a fork."""
    owner, driver = _opened()
    if owner != os.getpid():
        raise DeviceError("Metal is in use by the process that this one was forked from; start processes by spawn")
    return driver


@functools.cache
def _opened() -> tuple[int, ObjectiveC]:
    if sys.platform != "darwin":
        raise DeviceError(
            "Metal is a part of macOS, and this is another system",
            code="other_system",
            remedy="device='vulkan' is for GPUs here, or use backend='cpu'",
        )
    try:
        return os.getpid(), ObjectiveC()
    except (OSError, AttributeError) as error:
        raise DeviceError(f"Metal cannot be opened: {error}", code="no_driver") from None
