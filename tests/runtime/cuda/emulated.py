"""EmulatedDevice: the kernels of native/cuda compiled for this machine's CPU, so that tests need no GPU.

native/cuda/emulated has the device's side. What a launch does wrong is an AssertionError with kernel, block and thread.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import functools
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from woolly.runtime.cuda.ops import KERNELS
from woolly.runtime.gpu.device import Address

SOURCES = Path(__file__).parents[3] / "native" / "cuda"
# No fused multiply-add that the source does not ask for: CUDA's compiler may fuse, and results must not hang on it.
# Indices of arrays and alignment are checked as the GPU would.
FLAGS = (
    *("-std=c++20", "-w", "-fPIC", "-fvisibility=hidden", "-U_FORTIFY_SOURCE"),
    *("-fno-strict-aliasing", "-ffp-contract=off"),
    *("-fsanitize=alignment,bounds", "-fsanitize-undefined-trap-on-error"),
)
# One launch at a time, whichever thread makes it.
_TURN = threading.Lock()
_MARK = re.compile(r'struct emulated_kernel__;\s*extern "C" void kernel_(\w+)')


def source(name: str) -> Path:
    """The .cu file of that name, in whichever room of native/cuda it is."""
    (path,) = SOURCES.rglob(f"{name}.cu")
    return path


def build(*sources: Path, macros: tuple[str, ...] = ("WOOLLY_EMULATED=1",)) -> Path:
    """The shared library of these .cu files, made once for each content; without any those of native/cuda."""
    if sys.platform != "linux":
        pytest.skip("the emulated GPU runs on Linux")
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    sources = sources or tuple(sorted(SOURCES.rglob("*.cu")))
    folder = Path(tempfile.gettempdir()) / f"woolly-emulated-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    everything = sorted({*sources, *SOURCES.rglob("*.cuh"), *SOURCES.glob("emulated/*")})
    names, defined = [str(path) for path in sources], [f"-D{macro}" for macro in macros]
    library = folder / f"{_checksum(compiler, *FLAGS, *defined, *names, *(p.read_bytes() for p in everything))}.so"
    if library.exists():
        return library
    with _alone(folder):
        own = [SOURCES / "emulated" / name for name in ("device.cpp", "memory.cpp")]
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # a compiler takes 0.3 GB
            objects = list(pool.map(lambda path: _compiled(compiler, path, folder, defined), [*own, *sources]))
        _make(library, [*shlex.split(compiler), "-shared", *map(str, objects)])
    return library


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lets one process at a time compile: all kernels are a minute's work of two cores, which the others find done."""
    import fcntl  # which Windows lacks

    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compiled(compiler: str, source: Path, folder: Path, defined: list[str]) -> Path:
    # Fibers change millions of times; kernels are many, and compile in a third of the time.
    flags = [*FLAGS, "-O2" if source.suffix == ".cpp" else "-Og"]
    command = [*shlex.split(compiler), "-x", "c++", *flags, f"-I{SOURCES}"]
    text = _run([*command, *defined, "-E", str(source)])
    # Macros make kernels, too: what counts is the text that they leave.
    text += "\n".join(("", *map(_entry, _MARK.findall(text)), ""))
    out = folder / f"{_checksum(*command, text)}.o"
    if not out.exists():
        written = out.with_suffix(f".{os.getpid()}.ii")
        written.write_text(text)
        _make(out, [*shlex.split(compiler), *flags, "-c", str(written)])
        written.unlink()
    return out


def _entry(name: str) -> str:
    caller = f"::emulated::Caller<&kernel_{name}>"
    return f'static const ::emulated::Entered emulated_entered_{name}("{name}", {caller}::signature, {caller}::call);'


def _make(out: Path, command: list[str]) -> None:
    """Runs a command that makes a file, which appears when it is whole."""
    partial = out.with_suffix(f".{os.getpid()}.partial")
    _run([*command, "-o", str(partial)])
    partial.replace(out)


def _run(command: list[str]) -> str:
    # A sanitizer that is preloaded into the tests (scripts/sanitize) would slow the compiler down, and judge it.
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr[:6000]
    return done.stdout


def _checksum(*parts: str | bytes) -> str:
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part if isinstance(part, bytes) else part.encode())
        sha.update(b"\0")
    return sha.hexdigest()[:24]


@functools.cache
def load(library: Path) -> ctypes.CDLL:
    native = ctypes.CDLL(str(library))
    native.emulated_allocate.restype = ctypes.c_void_p
    native.emulated_allocate.argtypes = [ctypes.c_size_t]
    native.emulated_free.argtypes = [ctypes.c_void_p]
    native.emulated_owns.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    native.emulated_signature.restype = native.emulated_launch.restype = ctypes.c_char_p
    return native


class _Allocations(dict[int, int]):
    """Bytes by address. What is left is freed with the last device that knows of it: many tests close none."""

    def __init__(self, native: ctypes.CDLL) -> None:
        super().__init__()
        self._native = native

    def __del__(self) -> None:
        for address in self:
            self._native.emulated_free(address)


class EmulatedDevice:
    """A Device whose work is done at once. Fresh memory is full of what is not a number.

    It has what every generation has. Macros of its sources may say otherwise, as for HopperDevice.
    """

    name = "emulated"
    driver = "emulation"
    architecture = kernels_for = 80
    kernels = KERNELS

    @property
    def level(self) -> str:
        return f"sm_{self.architecture}"

    n_processors = 4
    shared_bytes = 227 << 10
    bandwidth = 1e9
    macros: tuple[str, ...] = ("WOOLLY_EMULATED=1",)

    def __init__(self, *sources: Path) -> None:
        self._native = load(build(*sources, macros=self.macros))
        self._sizes = _Allocations(self._native)
        # Around the native call and the table: what is freed natively may be another thread's at once.
        self._memory = threading.RLock()
        self._graphs: dict[int, list[tuple]] = {}
        self._recorded: list[tuple] | None = None
        self._marks = 0
        self._is_first = True
        self._is_closed = False

    def memory(self) -> tuple[int, int]:
        total = 8 << 30
        return total - self._taken(), total

    def allocate(self, n_bytes: int) -> Address:
        with self._memory:
            address = self._native.emulated_allocate(n_bytes)
            assert address, f"no memory for {n_bytes} bytes"
            self._sizes[address] = n_bytes
        return Address(address)

    def free(self, address: Address) -> None:
        with self._memory:
            if self._is_closed:
                return  # all memory is given back already
            assert self._native.emulated_free(int(address)), f"{address:#x} was not allocated"
            del self._sizes[int(address)]

    def upload(self, address: Address, data: np.ndarray) -> None:
        assert data.flags.c_contiguous
        self._check(address, data.nbytes)
        ctypes.memmove(int(address), data.ctypes.data, data.nbytes)

    send = upload

    def download(self, address: Address, out: np.ndarray) -> None:
        assert out.flags.c_contiguous
        self._check(address, out.nbytes)
        ctypes.memmove(out.ctypes.data, int(address), out.nbytes)

    def zero(self, address: Address, n_bytes: int) -> None:
        self._check(address, n_bytes)
        ctypes.memset(int(address), 0, n_bytes)

    def precompile(self, kernels) -> None:
        pass

    def prepare(self, kernel: str, shared: int) -> None:
        assert self._native.emulated_signature(kernel.encode()) is not None, f"there is no kernel {kernel}"

    def launch(self, kernel: str, grid, block: int, shared: int, args, early: bool = False, group: int = 1) -> None:
        if self._recorded is not None:
            self._recorded.append((kernel, tuple(grid), block, shared, tuple(args), early, group))
            return
        signature = self._native.emulated_signature(kernel.encode())
        assert signature is not None, f"there is no kernel {kernel}"
        given = "".join("p" if isinstance(a, Address) else "f" if isinstance(a, float) else "i" for a in args)
        assert given == signature.decode(), f"{kernel} takes {signature.decode()}, but was given {given}: {args}"
        types = {"p": ctypes.c_uint64, "i": ctypes.c_int32, "f": ctypes.c_float}
        for kind, arg in zip(given, args, strict=True):
            assert kind != "i" or -(1 << 31) <= arg < 1 << 32, f"{kernel} was given {arg} for an int"
        values = [types[kind](arg) for kind, arg in zip(given, args, strict=True)]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        sizes = [(ctypes.c_uint * 3)(*(*n, 1, 1)[:3]) for n in (tuple(grid), (block,))]
        with _TURN:
            failed = self._native.emulated_launch(
                kernel.encode(), *sizes, ctypes.c_uint(shared), pointers, ctypes.c_uint(group)
            )
        assert failed is None, failed.decode()

    def wait(self) -> None:
        pass

    def capture(self, queue) -> int:
        self._recorded = recorded = []
        try:
            queue()
        finally:
            self._recorded = None
        self._marks += 1
        self._graphs[self._marks] = recorded
        return self._marks

    def replay(self, graph: int) -> None:
        for row in self._graphs[graph]:
            self.launch(*row)

    def forget(self, graph: int) -> None:
        del self._graphs[graph]

    def mark(self) -> int:
        self._marks += 1
        return self._marks

    def times(self, marks) -> list[int]:
        return [1000] * (len(marks) - 1)

    def reach(self, mark: int, is_soon: bool = False) -> None:
        self.wait()

    def new_stream(self) -> EmulatedDevice:
        other = copy.copy(self)
        other._is_first = False
        return other

    def pinned(self, n_bytes: int) -> np.ndarray:
        return np.empty(n_bytes, np.uint8)

    def close(self) -> None:
        with self._memory:
            for address in list(self._sizes) if self._is_first else ():
                self.free(Address(address))
            self._is_closed = True

    def _taken(self) -> int:
        with self._memory:
            return sum(self._sizes.values())

    def _check(self, address: Address, n_bytes: int) -> None:
        inside = n_bytes == 0 or self._native.emulated_owns(int(address), n_bytes)
        assert inside, f"{n_bytes} bytes at {int(address):#x} are not of one allocation"


class HopperDevice(EmulatedDevice):
    """With pairs of blocks, bulk copies and wgmma, and the products of one kind of tiles alone, which compile soon."""

    architecture = kernels_for = 90
    n_processors = 64
    macros = ("WOOLLY_EMULATED=90", "WOOLLY_NAME=q4_k", "WOOLLY_TYPE=Q4_K")
    names = (
        *("embed", "rows", "pack"),
        *(f"linear_{name}" for name in ("gemv", "rows8", "rows32", "wgmma", "splitk", "support")),
    )

    def __init__(self) -> None:
        super().__init__(*(source(name) for name in self.names))
