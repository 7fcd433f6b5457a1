"""FakeMetal: objects of Metal as Python has them, behind the messages that Woolly sends to Apple's frameworks.

Work is done when it is committed: copies by the host, kernels as C++ (text.py). Launches between two barriers are done
last first: one that needs what another writes finds what was there before. What a program does wrong with Metal,
such as an encoder that is used after its end, memory that the driver does not know, or an object that nobody frees
or that no pool takes, is an AssertionError. `faults` says what fails: by message, what the object replies.
"""

# ruff: noqa: N802 - methods are named as Metal's messages are

from __future__ import annotations

import ctypes as c
import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

DONE, FAILED = 4, 5


class Object:
    """Reference-counted object with a handle."""

    def __init__(self, metal: FakeMetal) -> None:
        self.metal, self.handle, self.n_users = metal, next(metal.numbers), 1
        metal.objects[self.handle] = self

    def retain(self) -> int:
        self.n_users += 1
        return self.handle

    def release(self) -> None:
        self.n_users -= 1
        assert self.n_users >= 0
        if self.n_users == 0:
            self.end()
            del self.metal.objects[self.handle]

    def end(self) -> None:
        """Release resources after the last reference."""

    def alloc(self) -> int:
        return self.handle

    def init(self) -> int:
        return self.handle


class Gpu(Object):
    def name(self) -> int:
        return self.metal.string("Fake M9")

    def supportsFamily_(self, family: int) -> bool:
        assert family == 1007
        return True

    def recommendedMaxWorkingSetSize(self) -> int:
        return 8 << 30

    def currentAllocatedSize(self) -> int:
        return sum(one.size for one in list(self.metal.objects.values()) if isinstance(one, Buffer))

    def maxThreadgroupMemoryLength(self) -> int:
        return 32768

    def newCommandQueue(self) -> int:
        return Queue(self.metal).handle

    def newBufferWithLength_options_(self, size: int, options: int) -> int:
        assert options == 0
        return Buffer(self.metal, size).handle

    def newLibraryWithSource_options_error_(self, source: int, options: int) -> int:
        made = self.metal.objects[options]
        asked = {"setLanguageVersion:": 3 << 16, "setMathMode:": 0, "setMathFloatingPointFunctions:": 1}
        assert made.settings == asked
        return Holder(self.metal, self.metal.objects[source].text).handle

    def newComputePipelineStateWithFunction_error_(self, function: int) -> int:
        return Holder(self.metal, self.metal.objects[function].text).handle


class Holder(Object):
    """A string, a library, its function, or what is compiled of it."""

    def __init__(self, metal: FakeMetal, text: str) -> None:
        super().__init__(metal)
        self.text = text

    def newFunctionWithName_(self, name: int) -> int:
        assert self.metal.objects[name].text == "main_0"
        return Holder(self.metal, self.text).handle


class CompileOptions(Object):
    def __init__(self, metal: FakeMetal) -> None:
        super().__init__(metal)
        self.settings: dict[str, Any] = {}

    def setLanguageVersion_(self, version: int) -> None:
        self.settings["setLanguageVersion:"] = version

    def setMathMode_(self, mode: int) -> None:
        self.settings["setMathMode:"] = mode

    def setMathFloatingPointFunctions_(self, functions: int) -> None:
        self.settings["setMathFloatingPointFunctions:"] = functions


class Buffer(Object):
    """Memory that ends at a page that nobody may touch."""

    def __init__(self, metal: FakeMetal, size: int) -> None:
        super().__init__(metal)
        self.size, self.at = size, metal.native.emulated_allocate(size)

    def gpuAddress(self) -> int:
        return self.at

    def contents(self) -> int:
        return self.at

    def end(self) -> None:
        assert self.metal.native.emulated_free(self.at)


class Queue(Object):
    def commandBuffer(self) -> int:
        return self.metal.unowned(Commands(self.metal))


class Commands(Object):
    """A command buffer."""

    def __init__(self, metal: FakeMetal) -> None:
        super().__init__(metal)
        self.work: list[Any] = []
        self.is_open = self.is_committed = False
        self.state = self.number = 0

    def _encoder(self, one: Object) -> int:
        assert not self.is_open and not self.is_committed
        self.is_open = True
        return self.metal.unowned(one)

    def computeCommandEncoderWithDispatchType_(self, kind: int) -> int:
        assert kind == 1
        return self._encoder(Launches(self.metal, self))

    def blitCommandEncoder(self) -> int:
        return self._encoder(Copies(self.metal, self))

    def commit(self) -> None:
        self.metal.string("left by the driver")
        assert not self.is_open and not self.is_committed
        self.is_committed = True
        for one in self.work:
            one()
        self.metal.n_committed += 1
        self.number = self.metal.n_committed
        self.state = self.metal.faults.get("status", DONE)

    def status(self) -> int:
        return self.state

    def waitUntilCompleted(self) -> None:
        self.metal.string("left by the driver")
        assert self.is_committed

    def GPUStartTime(self) -> float:
        """Half a second before its end, and as long after the end of the one before."""
        return self.number - 0.5

    def GPUEndTime(self) -> float:
        return float(self.number)

    def error(self) -> int:
        return self.metal.unowned(Fault(self.metal))


class Fault(Object):
    def code(self) -> int:
        return self.metal.faults["code"]

    def localizedDescription(self) -> int:
        return self.metal.string("Internal Error (0000000e)")


class Encoder(Object):
    def __init__(self, metal: FakeMetal, commands: Commands) -> None:
        super().__init__(metal)
        self.commands, self.is_over = commands, False

    def endEncoding(self) -> None:
        self.metal.string("left by the driver")
        assert not self.is_over
        self.is_over, self.commands.is_open = True, False

    def end(self) -> None:
        assert self.is_over


class Copies(Encoder):
    def copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(
        self, source: int, at: int, to: int, place: int, n: int
    ) -> None:
        a, b = (self.metal.objects[one] for one in (source, to))
        assert not self.is_over and at % 4 == place % 4 == n % 4 == 0
        assert at + n <= a.size and place + n <= b.size
        self.commands.work.append(lambda: c.memmove(b.at + place, a.at + at, n))

    def fillBuffer_range_value_(self, buffer: int, where: Any, value: int) -> None:
        one = self.metal.objects[buffer]
        assert not self.is_over and where.first % 4 == where.n % 4 == 0 and where.first + where.n <= one.size
        self.commands.work.append(lambda: c.memset(one.at + where.first, value, where.n))


class Launches(Encoder):
    def __init__(self, metal: FakeMetal, commands: Commands) -> None:
        super().__init__(metal, commands)
        self.known: set[int] = set()
        self.text, self.pushed = "", b""
        self.together: list[Any] = []  # launches that Metal may do in any order

    def useResources_count_usage_(self, array: int, n: int, usage: int) -> None:
        assert usage == 3
        self.known |= set((c.c_void_p * n).from_address(array))

    def memoryBarrierWithScope_(self, scope: int) -> None:
        assert scope == 1 and not self.is_over
        self._part()

    def endEncoding(self) -> None:
        super().endEncoding()
        self._part()

    def _part(self) -> None:
        """Order the following commands after the previous ones."""
        self.commands.work += reversed(self.together)
        self.together = []

    def setComputePipelineState_(self, state: int) -> None:
        self.text = self.metal.objects[state].text

    def setBytes_length_atIndex_(self, place: Any, n: int, index: int) -> None:
        assert index == 0
        self.pushed = c.string_at(place, n)

    def dispatchThreadgroups_threadsPerThreadgroup_(self, grid: Any, threads: Any) -> None:
        self.metal.string("left by the driver")
        first = int.from_bytes(self.pushed[:8], sys.byteorder)  # an address, of every kernel
        assert not self.is_over and self._knows(first), "the driver does not know the memory of the arguments"
        name, pushed = self.metal.kernels[self.text], self.pushed
        assert self.metal.native.emulated_signature(name.encode()), f"{name} is not in KERNELS of conftest.py"
        sizes = [(c.c_uint * 3)(one.x, one.y, one.z) for one in (grid, threads)]

        def run() -> None:
            arguments = (c.c_void_p * 1)(c.addressof(value := c.create_string_buffer(pushed, len(pushed))))
            failed = self.metal.native.emulated_launch(name.encode(), *sizes, c.c_uint(0), arguments, c.c_uint(1))
            assert failed is None and value.raw == pushed, failed

        self.together.append(run)
        self.metal.launched.append(name)

    def _knows(self, address: int) -> bool:
        owners = [one for one in list(self.metal.objects.values()) if isinstance(one, Buffer)]
        return any(one.at <= address < one.at + one.size and one.handle in self.known for one in owners)


class FakeMetal:
    """In place of woolly.runtime.metal.libobjc.ObjectiveC."""

    version = "15.1"

    def __init__(self, native: c.CDLL, kernels: dict[str, str], n_gpus: int = 1) -> None:
        self.native, self.kernels = native, kernels  # names by text
        self.numbers, self.objects = itertools.count(1), dict[int, Object]()
        self.faults: dict[str, Any] = {}
        self.launched: list[str] = []
        self.n_committed, self._n_gpus = 0, n_gpus
        self._pools: list[list[Object]] = []

    def send(self, receiver: int, message: str, *arguments: Any, result: Any = c.c_void_p) -> Any:
        if message in self.faults:
            return self.faults[message]
        values = [one.value if isinstance(one, c._SimpleCData) else one for one in arguments]
        return getattr(self.objects[receiver], message.replace(":", "_"))(*values)

    def attempt(self, receiver: int, message: str, *arguments: Any) -> tuple[int, str]:
        if message in self.faults:
            return 0, self.faults[message]
        return self.send(receiver, message, *arguments), ""

    def responds(self, receiver: int, message: str) -> bool:
        return hasattr(self.objects[receiver], message.replace(":", "_"))

    def find_class(self, name: str) -> int:
        assert name == "MTLCompileOptions"
        return CompileOptions(self).handle

    def describe(self, error: int) -> str:
        return self.text(self.send(error, "localizedDescription"))

    def text(self, string: int) -> str:
        return self.objects[string].text

    def string(self, text: str) -> int:
        return self.unowned(Holder(self, text))

    def devices(self) -> list[int]:
        return [Gpu(self).handle for _ in range(self._n_gpus)]

    def unowned(self, one: Object) -> int:
        """An object that the pool in use frees. Threads of Python have none by themselves: it would stay for good."""
        assert self._pools, f"no pool frees {type(one).__name__}"
        self._pools[-1].append(one)
        return one.handle

    @contextmanager
    def pool(self) -> Iterator[None]:
        self._pools.append([])
        try:
            yield
        finally:
            for one in self._pools.pop():
                one.release()

    def left(self) -> list[str]:
        """Kinds of objects that nobody freed."""
        return [type(one).__name__ for one in list(self.objects.values())]
