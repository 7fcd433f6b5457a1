"""The Device: memory and launches of one GPU, or of what stands in for one in tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from woolly.errors import RequestError

if TYPE_CHECKING:
    from woolly.runtime.gpu.kernels import Kernels


class Address(int):
    """A place in the device's memory. Kernels take it as 64 bits; of other numbers, an int as int32, a float as f32."""

    def __add__(self, n_bytes: int) -> Address:
        return Address(int(self) + n_bytes)


Number = Address | int | float
# A tuple is a struct on the device, and the kernel takes its address: of GPUs whose drivers take command buffers.
Argument = Number | tuple[Number, ...]


class Device(Protocol):
    """One device and a queue of work on it. What is queued is done in order; calls return before it is done.

    Every thread may call it, but one at a time. `beside` gives a second queue for a second thread.
    """

    @property
    def name(self) -> str:
        """As the maker calls it."""

    @property
    def level(self) -> str:
        """Its generation, as `Options.level` names it: sm_90."""

    @property
    def driver(self) -> str:
        """What drives it, for people, with what stands in for arithmetic that it lacks."""

    @property
    def kernels(self) -> Kernels:
        """The emitters of its kernels. Imported when first asked for: they take 30 ms."""

    @property
    def architecture(self) -> int:
        """Its generation as a number that emitters compare: 90 for sm_90."""

    @property
    def kernels_for(self) -> int:
        """The generation that its kernels are compiled for: its own, or an earlier one."""

    @property
    def n_processors(self) -> int:
        """Multiprocessors."""

    @property
    def shared_bytes(self) -> int:
        """Most shared memory that a block may ask for."""

    @property
    def bandwidth(self) -> float | None:
        """Bytes per second that its memory gives at most; None if that is unknown."""

    def memory(self) -> tuple[int, int]:
        """Bytes that are free, and bytes in all."""

    def allocate(self, n_bytes: int) -> Address:
        """New memory, aligned to 256 bytes, of any content. RequestError if there is not enough."""

    def free(self, address: Address) -> None:
        """Gives back what `allocate` gave, after all work queued so far."""

    def pinned(self, n_bytes: int) -> npt.NDArray[np.uint8]:
        """Memory of the host that copies to and from the device are fast with."""

    def upload(self, address: Address, data: npt.NDArray[Any]) -> None:
        """Queues a copy of a contiguous array to the device. The array may change after the call."""

    def send(self, address: Address, pinned: npt.NDArray[np.uint8]) -> None:
        """Queues a copy of `pinned` memory to the device. It must not change before `wait`."""

    def download(self, address: Address, out: npt.NDArray[Any]) -> None:
        """Queues a copy from the device into a contiguous array. It is there after `wait`."""

    def zero(self, address: Address, n_bytes: int) -> None:
        """Queues zeros."""

    def precompile(self, kernels: Iterable[str]) -> None:
        """Has kernels of these names ready before any is loaded: some may have to be compiled."""

    def prepare(self, kernel: str, shared: int) -> None:
        """Loads a kernel that may use so much dynamic shared memory, so that its first launch need not."""

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
        """Queues a kernel by name: up to three axes of blocks, threads of a block, bytes of dynamic shared memory.

        An early kernel may begin while the kernel before it ends; it waits itself before it reads what that one wrote.
        If blocks of the kernel work in groups, only as many groups are launched as run at once: some wait for others.
        """

    def wait(self) -> None:
        """Returns when all queued work is done. DeviceError if it failed or hangs."""

    def capture(self, queue: Callable[[], None]) -> int:
        """Records the launches that `queue` makes, without running them; gives a number to replay them by."""

    def replay(self, graph: int) -> None:
        """Queues recorded launches."""

    def forget(self, graph: int) -> None:
        """Drops recorded launches."""

    def mark(self) -> int:
        """Queues a time stamp; gives its number."""

    def times(self, marks: Sequence[int]) -> list[int]:
        """Nanoseconds between each mark and the next, after `wait`; drops the marks."""

    def reach(self, mark: int, is_soon: bool = False) -> None:
        """Returns when the work queued before a mark is done; drops the mark. DeviceError as with `wait`.

        What is done soon is waited for without a sleep.
        """

    def beside(self) -> Device:
        """The same device and memory with a queue of its own."""

    def close(self) -> None:
        """Ends the queue. The first device ends the others, too, and gives back all memory."""


def too_large(device: Device, n_bytes: int, code: str | None) -> RequestError:
    """What to raise if a device has no room for that many bytes more: with its figures, and what would help."""
    free, total = device.memory()
    return RequestError(
        f"{device.name} has {free / 1e9:,.1f} GB free of {total / 1e9:,.1f} GB, and {n_bytes / 1e9:,.1f} GB more"
        " are needed; lower ctx or kv_tokens, take a smaller file, or use backend='cpu'",
        code=code,
        limit=free,
        given=n_bytes,
        names=("ctx", "kv_tokens", "backend"),
    )
