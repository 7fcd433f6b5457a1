"""KernelCompiler: JIT compilation of the kernels that a model launches, cached on disk.

A build from source has no kernel archive: compiling all kernels for one architecture takes eight CPU minutes, the
kernels of one model a fraction of that. NVRTC compiles the sources (native/cuda) in units: a file, or one tile kind of
a file. Compiled units are cached in a folder named by a digest of all sources and of NVRTC's version. Files are renamed
into place when complete and begin with a checksum: two processes may compile the same unit, and a damaged file is
compiled again. Only the latest few folders of other sources, such as an earlier version, are kept. A process whose
folder was removed keeps its loaded units and recompiles the missing ones.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import logging
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from woolly import _native
from woolly.errors import DeviceError, StoreError
from woolly.machine.cores import default_threads
from woolly.runtime.cuda.kernel_archive import COMPILES_PTX
from woolly.store.model_folder import models_folder

log = logging.getLogger("woolly.runtime")

# Sources of a checkout, else the copy next to the installed native module.
_SOURCE_FOLDERS = (
    Path(__file__).resolve().parents[3] / "native" / "cuda",
    Path(_native.__file__).parent / "runtime" / "cuda" / "sources",
)
_MARK = b"woollyu1"
# Kernels that every model uses outside of plan steps: weight packing and logit ranking.
_ALWAYS_COMPILED = ("pack_q8_0", "rank_parts")
_PROGRESS_SECONDS = 10  # between progress messages
_MAX_OLD_FOLDERS = (
    3  # folders to keep besides the current one, so that two checkouts and a release do not evict each other
)


@dataclass(frozen=True)
class Unit:
    """Kernels compiled together."""

    kernels: tuple[str, ...]
    image: bytes

    def data(self) -> bytes:
        """Image for cuModuleLoadData: a cubin, or zero-terminated PTX."""
        return self.image


class KernelCompiler:
    """NVRTC compiler of the kernel sources."""

    def __init__(self, folder: Path, cache: Path | None = None) -> None:
        """Compiled units are stored in `cache`, by default the user's cache folder."""
        self._compile_module = _module(folder / "compile.py")
        self._folder = folder
        self._cache = cache

    @classmethod
    def find(cls) -> KernelCompiler | None:
        """Return the compiler of this installation, or None if there are no kernel sources."""
        return next((cls(place) for place in _SOURCE_FOLDERS if (place / "compile.py").exists()), None)

    def target(self, architecture: int, version: int = COMPILES_PTX) -> str:
        """Return the target for an architecture. Raises DeviceError if NVRTC is missing or the driver is too old."""
        if self._compile_module.find_nvrtc() is None:
            raise DeviceError(
                "this build of Woolly compiles CUDA kernels on first use, but NVRTC was not found:"
                " `pip install nvidia-cuda-nvrtc-cu12`, set CUDA_NVRTC to the library, or use backend='cpu'",
                code="no_kernels",
            )
        exact = (f"sm_{architecture}a", f"sm_{architecture}")
        target = next((one for one in self._compile_module.KNOWN if one in exact), str(self._compile_module.PORTABLE))
        if target.startswith("compute_") and version < COMPILES_PTX:
            raise DeviceError(
                f"kernels for sm_{architecture} are PTX, which needs driver 575 or later; or use backend='cpu'",
                code="old_driver",
            )
        return target

    def kernels_of(self, target: str) -> JitKernels:
        """Return the kernels of a target. Raises DeviceError if NVRTC is not usable."""
        path = self._compile_module.find_nvrtc()
        try:
            compiler = self._compile_module.Compiler(path)
            version = compiler.version
        except (OSError, AttributeError, self._compile_module.CompileError) as error:
            raise DeviceError(
                f"{path} cannot be used as NVRTC to compile CUDA kernels: {error}; set CUDA_NVRTC to the library"
                " of CUDA 12.9, unset it to use the package nvidia-cuda-nvrtc-cu12, or use backend='cpu'",
                code="no_kernels",
            ) from None
        try:
            cache = self._cache or models_folder().parent / "kernels"
        except StoreError as error:
            log.warning("CUDA kernels cannot be cached and will be compiled again at the next start: %s", error)
            return JitKernels(self._compile_module, compiler, target, None)
        folder = cache / self._digest(version)
        _evict_old(folder)
        return JitKernels(self._compile_module, compiler, target, folder / target)

    def _digest(self, version: str) -> str:
        digest = hashlib.sha256(version.encode())
        for path in (*sorted(self._folder.rglob("*.cu*")), self._folder / "compile.py"):
            if "emulated" not in path.parts:
                digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        return digest.hexdigest()[:24]


class JitKernels:
    """Units of one target, loaded from the cache or compiled on first use."""

    def __init__(self, compiling: ModuleType, compiler: object, target: str, folder: Path | None) -> None:
        """Units are cached in `folder`, or only in memory if it is None."""
        self._compile_module = compiling
        self._compiler = compiler
        self._target = target
        self._folder = folder
        self._units: dict[tuple[Path, str], Unit] = {}
        self._lock = threading.Lock()
        self._locks: dict[tuple[Path, str], threading.Lock] = {}
        self._has_warned = False

    def find(self, kernel: str) -> Unit | None:
        """Return the unit of a kernel, compiled if necessary, or None if no source has the kernel."""
        key = self._compile_module.unit_of(kernel)
        unit = None if key is None else self._unit(key)
        return unit if unit is not None and kernel in unit.kernels else None

    def precompile(self, kernels: Iterable[str]) -> None:
        """Compile the units of these kernels that are not cached, with one thread per core."""
        keys = dict.fromkeys(self._compile_module.unit_of(kernel) for kernel in (*kernels, *_ALWAYS_COMPILED))
        missing = [key for key in keys if key is not None and self._load(key) is None]
        if not missing:
            return
        # Longest first, so that no core waits for it at the end.
        missing.sort(key=lambda key: key[0].stem not in self._compile_module.BY_KIND)
        log.warning(
            "compiling CUDA kernels of this model for %s: %d units%s",
            self._target,
            len(missing),
            "" if self._folder is None else f", cached in {self._folder} for the next start",
        )
        from concurrent.futures import (
            ThreadPoolExecutor,
            as_completed,
        )  # this file is also imported on machines without a GPU

        began = reported = time.monotonic()
        pool = ThreadPoolExecutor(min(len(missing), default_threads()), "woolly-compile")
        try:
            for n, future in enumerate(as_completed([pool.submit(self._unit, key) for key in missing]), 1):
                future.result()
                if time.monotonic() - reported > _PROGRESS_SECONDS:
                    reported = time.monotonic()
                    log.warning("compiled %d of %d units of CUDA kernels", n, len(missing))
        finally:
            pool.shutdown(cancel_futures=True)
        log.warning("compiled the CUDA kernels in %.0f s", time.monotonic() - began)

    def _unit(self, key: tuple[Path, str]) -> Unit:
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:  # compile a unit only once if two threads request it
            unit = self._load(key)
            if unit is None:
                self._units[key] = unit = self._compile(key)
                self._save(key, unit)
            return unit

    def _compile(self, key: tuple[Path, str]) -> Unit:
        source, kind = key
        try:
            image, kernels, _ = self._compiler.compile(source, self._target, kind)  # type: ignore[attr-defined]
        except self._compile_module.CompileError as error:
            text = f"NVRTC cannot compile a kernel of Woolly: {error}; reinstall Woolly, or use backend='cpu'"
            raise DeviceError(text, code="no_kernels") from None
        return Unit(tuple(kernels), image)

    def _path(self, folder: Path, key: tuple[Path, str]) -> Path:
        source, kind = key
        return folder / f"{source.stem}{'-' * bool(kind)}{kind}.bin"

    def _load(self, key: tuple[Path, str]) -> Unit | None:
        """Return a unit from memory or the cache, or None if it has to be compiled."""
        if key not in self._units and self._folder is not None:
            with suppress(OSError):
                unit = _unpacked(self._path(self._folder, key).read_bytes())
                if unit is not None:
                    self._units[key] = unit
        return self._units.get(key)

    def _save(self, key: tuple[Path, str], unit: Unit) -> None:
        if self._folder is None:
            return
        path = self._path(self._folder, key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".part")
            try:
                with os.fdopen(handle, "wb") as out:
                    out.write(_packed(unit))
                Path(name).replace(path)
            except BaseException:
                with suppress(OSError):
                    Path(name).unlink()
                raise
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                log.warning("CUDA kernels cannot be cached and will be compiled again at the next start: %s", error)


def _evict_old(folder: Path) -> None:
    """Update the timestamp of `folder`, and remove the least recently used folders of other sources."""
    with suppress(OSError):
        os.utime(folder)
    used = []
    with suppress(OSError):
        for other in folder.parent.iterdir():
            # Another process may remove it in between.
            with suppress(OSError):
                if other != folder and re.fullmatch("[0-9a-f]{24}", other.name):
                    used.append((other.stat().st_mtime_ns, other))
    for _, other in sorted(used, reverse=True)[_MAX_OLD_FOLDERS:]:
        shutil.rmtree(other, ignore_errors=True)


def _packed(unit: Unit) -> bytes:
    head = json.dumps(unit.kernels).encode()
    rest = len(head).to_bytes(4, "little") + head + unit.image
    return _MARK + hashlib.sha256(rest).digest() + rest


def _unpacked(data: bytes) -> Unit | None:
    """Parse a cached file. Return None if it is damaged."""
    rest = data[40:]
    if data[:8] != _MARK or hashlib.sha256(rest).digest() != data[8:40]:
        return None
    start = 4 + int.from_bytes(rest[:4], "little")
    return Unit(tuple(json.loads(rest[4:start])), rest[start:])


@functools.cache
def _module(path: Path) -> ModuleType:
    """Import compile.py, which is next to the sources."""
    found = importlib.util.spec_from_file_location("woolly_cuda_compile", path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
