"""The driver of Windows: its library, and memory that it pins."""

import gc
import mmap
import sys
from types import SimpleNamespace

import pytest

from native.cuda.compile import archive
from tests.runtime.cuda.fake import FakeLibrary
from woolly.runtime.cuda import context, libcuda
from woolly.runtime.cuda.kernel_archive import Archive
from woolly.runtime.cuda.libcuda import Driver


@pytest.fixture
def library():
    return FakeLibrary()


def test_windows_pins_memory_without_unsupported_flags(library, tmp_path, monkeypatch):
    # Python's mmap of Windows has neither flags nor their names.
    stand_in = SimpleNamespace(mmap=lambda number, size: mmap.mmap(number, size))
    monkeypatch.setattr(context, "mmap", stand_in)
    monkeypatch.setattr(sys, "platform", "win32")
    path = tmp_path / "kernels.bin"
    path.write_bytes(archive({"sm_90a": [(b"cubin", ["scale_rows"])]}))
    gpu = context.Context(Driver(library), 0, Archive(path))
    seen = gpu.pinned(10)
    assert seen.nbytes == 10 and len(library.pinned) == 1
    del seen
    gc.collect()
    assert not library.pinned
    gpu.close()


def test_windows_opens_its_driver_library(library, monkeypatch):
    asked = []
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(libcuda.ctypes, "CDLL", lambda name: asked.append(name) or library)
    monkeypatch.setattr(libcuda, "_found", None)
    assert libcuda.open_driver().n_devices() >= 1
    assert asked == ["nvcuda.dll"]
