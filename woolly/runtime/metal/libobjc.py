"""ObjectiveC: ctypes calls to Apple frameworks through the Objective-C runtime, without other packages.

An object is an integer address, 0 for nil. `send` takes ctypes values, because selectors carry no argument types.
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
    """MTLSize: threadgroups per grid, or threads per threadgroup."""

    _fields_ = [("x", c.c_uint64), ("y", c.c_uint64), ("z", c.c_uint64)]


class Range(c.Structure):
    """NSRange: offset and length in bytes."""

    _fields_ = [("first", c.c_uint64), ("n", c.c_uint64)]


class ObjectiveC:
    """Objective-C runtime and Metal framework."""

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
        self.version = platform.mac_ver()[0]  # version of macOS

    def send(self, receiver: int, message: str, *arguments: Any, result: Any = c.c_void_p) -> Any:
        """Send a message to an object and return its result."""
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
        """Return a class by name."""
        return int(self._objc.objc_getClass(name.encode()) or 0)

    def responds(self, receiver: int, message: str) -> bool:
        """True if an object responds to a selector."""
        selector = c.c_void_p(self._selector(message))
        return bool(self.send(receiver, "respondsToSelector:", selector, result=c.c_bool))

    def attempt(self, receiver: int, message: str, *arguments: Any) -> tuple[int, str]:
        """Send a message with a trailing NSError argument. Return the result, and the error's text if it is nil."""
        error = c.c_void_p()
        found = self.send(receiver, message, *arguments, c.pointer(error))
        return found, "" if found else self.describe(error.value or 0)

    def describe(self, error: int) -> str:
        """Return the text of an NSError."""
        return self.text(self.send(error, "localizedDescription")) if error else "no reason is given"

    def text(self, string: int) -> str:
        """Convert an NSString to str."""
        found = self.send(string, "UTF8String", result=c.c_char_p) if string else None
        return (found or b"").decode(errors="replace")

    def string(self, text: str) -> int:
        """Convert a str to an autoreleased NSString."""
        found = self.send(self.find_class("NSString"), "stringWithUTF8String:", c.c_char_p(text.encode()))
        return int(found)

    def devices(self) -> list[int]:
        """Return all GPUs, retained."""
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
        """Autorelease pool for the block, because Python threads have none."""
        pool = self._objc.objc_autoreleasePoolPush()
        try:
            yield
        finally:
            self._objc.objc_autoreleasePoolPop(pool)


def open_driver() -> ObjectiveC:
    """Return the Objective-C runtime of this process. Raises DeviceError on other systems, or after a fork."""
    owner, driver = _opened()
    if owner != os.getpid():
        raise DeviceError("Metal is in use by the parent process, which forked this one; start processes with spawn")
    return driver


@functools.cache
def _opened() -> tuple[int, ObjectiveC]:
    if sys.platform != "darwin":
        raise DeviceError(
            "Metal is only available on macOS",
            code="other_system",
            remedy="use device='vulkan' for a GPU, or backend='cpu'",
        )
    try:
        return os.getpid(), ObjectiveC()
    except (OSError, AttributeError) as error:
        raise DeviceError(f"Metal cannot be opened: {error}", code="no_driver") from None
