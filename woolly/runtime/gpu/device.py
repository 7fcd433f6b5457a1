"""Device protocol: memory and kernel launches of one GPU, or of a test double."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from woolly.errors import RequestError

if TYPE_CHECKING:
    from woolly.runtime.gpu.kernels import Kernels


class Address(int):
    """Device address, passed to kernels as 64 bits. Other arguments: int as int32, float as f32."""

    def __add__(self, n_bytes: int) -> Address:
        return Address(int(self) + n_bytes)


Number = Address | int | float
# A tuple is passed as the address of a struct on the device (Vulkan and Metal only).
Argument = Number | tuple[Number, ...]


class Device(Protocol):
    """One device with an in-order, asynchronous queue of work.

    Any thread may call it, but only one at a time. `new_stream` returns a second queue for a second thread.
    """

    @property
    def name(self) -> str:
        """Product name."""

    @property
    def level(self) -> str:
        """Kernel level as in `Options.level`, such as sm_90."""

    @property
    def driver(self) -> str:
        """Human-readable driver and version, with deviations from the arithmetic of the CPU."""

    @property
    def kernels(self) -> Kernels:
        """Emitters of the backend's kernels, imported on first use, which takes 30 ms."""

    @property
    def architecture(self) -> int:
        """Architecture as a number, 90 for sm_90."""

    @property
    def kernels_for(self) -> int:
        """Architecture that kernels are compiled for: the device's or an earlier one."""

    @property
    def n_processors(self) -> int:
        """Number of multiprocessors (SMs)."""

    @property
    def shared_bytes(self) -> int:
        """Maximum shared memory of a block, in bytes."""

    @property
    def bandwidth(self) -> float | None:
        """Peak memory bandwidth in bytes per second, or None if unknown."""

    def memory(self) -> tuple[int, int]:
        """Return free and total bytes."""

    def allocate(self, n_bytes: int) -> Address:
        """Allocate uninitialized memory aligned to 256 bytes. Raises RequestError if there is not enough."""

    def free(self, address: Address) -> None:
        """Free allocated memory after all work queued so far."""

    def pinned(self, n_bytes: int) -> npt.NDArray[np.uint8]:
        """Allocate pinned host memory for fast copies."""

    def upload(self, address: Address, data: npt.NDArray[Any]) -> None:
        """Queue the upload of a contiguous array, which may change after the call."""

    def send(self, address: Address, pinned: npt.NDArray[np.uint8]) -> None:
        """Queue the upload of `pinned` memory, which must not change before `wait`."""

    def download(self, address: Address, out: npt.NDArray[Any]) -> None:
        """Queue the download into a contiguous array, complete after `wait`."""

    def zero(self, address: Address, n_bytes: int) -> None:
        """Queue filling memory with zeros."""

    def precompile(self, kernels: Iterable[str]) -> None:
        """Compile kernels by name where needed, before any is loaded."""

    def prepare(self, kernel: str, shared: int) -> None:
        """Load a kernel with `shared` bytes of dynamic shared memory ahead of its first launch."""

    def launch(
        self,
        kernel: str,
        grid: Sequence[int],
        block: int,
        shared: int,
        args: Sequence[Argument],
        early: bool = False,
        group: int = 1,
    ) -> None:
        """Queue a kernel: grid of up to three axes, threads per block, bytes of dynamic shared memory.

        `early`: may start before the previous kernel ends. The kernel synchronizes itself before it reads its output.
        `group`: blocks per cooperating group. Only as many groups as can be resident are launched.
        """

    def wait(self) -> None:
        """Block until all queued work is done. Raises DeviceError if it failed or hangs."""

    def capture(self, queue: Callable[[], None]) -> int:
        """Record the launches of `queue` without running them, and return the number of the graph."""

    def replay(self, graph: int) -> None:
        """Queue recorded launches."""

    def forget(self, graph: int) -> None:
        """Free recorded launches."""

    def mark(self) -> int:
        """Queue a timestamp and return its number."""

    def times(self, marks: Sequence[int]) -> list[int]:
        """Return the nanoseconds between consecutive marks, after `wait`, and drop the marks."""

    def reach(self, mark: int, is_soon: bool = False) -> None:
        """Block until the work before a mark is done, and drop the mark. DeviceError as in `wait`.

        `is_soon`: spin instead of sleeping.
        """

    def new_stream(self) -> Device:
        """Return a handle of the same device and memory with a separate queue."""

    def close(self) -> None:
        """Close the queue. Closing the first device also closes the others and frees all memory."""


def too_large(device: Device, n_bytes: int, code: str | None) -> RequestError:
    """Return the out-of-memory error with free, total and requested bytes and remedies."""
    free, total = device.memory()
    return RequestError(
        f"{device.name} has {free / 1e9:,.1f} GB free of {total / 1e9:,.1f} GB, and {n_bytes / 1e9:,.1f} GB more"
        " are needed; lower ctx or kv_tokens, take a smaller file, or use backend='cpu'",
        code=code,
        limit=free,
        given=n_bytes,
        names=("ctx", "kv_tokens", "backend"),
    )
