"""native/gpu/compile.py: the archive is that of the sources, and no float operation may be fused."""

import importlib.util
import json
import lzma
import os
import re
import runpy
import struct
from pathlib import Path

import pytest

from woolly.errors import DeviceError, RequestError
from woolly.runtime.vulkan import cooperative_matrix
from woolly.runtime.vulkan.kernel_archive import ARCHIVE, SpirvArchive
from woolly.runtime.vulkan.ops import attention

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def archive():
    if not ARCHIVE.exists():
        pytest.skip("there is no archive: native/gpu/compile.py makes it")
    return SpirvArchive()


def test_archive_has_the_kernels_of_the_current_sources(compiling, archive):
    assert archive.sources == compiling.sources_digest(), "the sources have changed: run native/gpu/compile.py"
    for variant in compiling.VARIANTS:
        names = sorted(name for name, *_ in compiling.kernels(variant))
        assert len(names) == len(set(names))
        assert archive.names(variant) == names


def test_every_float_operation_is_exact(compiling, archive):
    for name in ("rms_norm", "linear_one_q4_k", "linear_tiles_q4_k", "attend_f16_128"):
        words = struct.unpack(f"<{len(code := archive.kernel('plain', name)) // 4}I", code)
        at, found, marked = 5, set(), set()
        while at < len(words):
            n, op = words[at] >> 16, words[at] & 0xFFFF
            if op in compiling._FLOAT_OPS:
                found.add(words[at + 2])
            if op == compiling._DECORATE and words[at + 2] == compiling._NO_CONTRACTION:
                marked.add(words[at + 1])
            at += n
        assert found and found <= marked


def test_metal_source_forbids_contraction_and_declares_its_threads(compiling, archive):
    for name in archive.names("metal"):
        text = archive.kernel("metal", name).decode()
        assert text.startswith("#pragma METAL fp contract(off)\n")
        (threads,) = re.findall(r"\[\[kernel, max_total_threads_per_threadgroup\((\d+)\)\]\] void main_0", text)
        assert int(threads) == compiling.n_threads(archive.kernel("plain", name)) <= 1024
        assert "5.19229685853482763e+33" not in text  # 2^112: no half becomes a number next to zero, which Apple's lack


def shared_bytes(code):
    """Bytes of the workgroup-shared variables of a kernel."""
    words = struct.unpack(f"<{len(code) // 4}I", code)
    sizes, numbers, at, total = {}, {}, 5, 0
    while words[at] & 0xFFFF != 54:  # functions come after types and variables
        n, (op, *rest) = words[at] >> 16, (words[at] & 0xFFFF, *words[at + 1 : at + (words[at] >> 16)])
        if op in (21, 22):  # an integer or a float of some bits
            sizes[rest[0]] = rest[1] // 8
        elif op == 23:  # a vector
            sizes[rest[0]] = sizes[rest[1]] * rest[2]
        elif op == 43:  # a constant
            numbers[rest[1]] = rest[2]
        elif op == 28:  # an array
            sizes[rest[0]] = sizes.get(rest[1], 0) * numbers[rest[2]]
        elif op == 32 and rest[1] == 4:  # a pointer to what is shared
            sizes[rest[0]] = sizes[rest[2]]
        elif op == 59 and rest[2] == 4:  # a variable that is
            total += sizes[rest[0]]
        at += n
    return total


def test_workgroups_share_no_more_memory_than_vulkan_guarantees(archive):
    most = {name: shared_bytes(archive.kernel("plain", name)) for name in archive.names("plain")}
    assert most["experts_route"] > 0
    tiled = cooperative_matrix.KERNELS
    assert set(most) - set(archive.names("double")) == tiled
    assert max(most[name] for name in tiled) <= cooperative_matrix._SHARED, "what a GPU must have for them"
    queries = {name for name in most if name.startswith(("attend_tile_", "attend_staged_"))}
    assert max(most[name] for name in queries) <= attention._TILE_SHARED, "what a device must have for them"
    assert {name for name, n in most.items() if n > 16_384} <= tiled | queries


def test_vectors_are_loaded_in_one_instruction(archive):
    """A driver that knows of no more than the alignment of one number loads each by itself."""
    words = struct.unpack(f"<{len(code := archive.kernel('plain', 'linear_one_q6_k')) // 4}I", code)
    at, sizes, loads = 5, {}, []
    while at < len(words):
        n, op = words[at] >> 16, words[at] & 0xFFFF
        if op in (21, 22):
            sizes[words[at + 1]] = words[at + 2] // 8
        elif op == 23:
            sizes[words[at + 1]] = sizes[words[at + 2]] * words[at + 3]
        elif op == 61 and n == 6 and words[at + 1] in sizes:
            loads.append((sizes[words[at + 1]], words[at + 5]))
        at += n
    assert {size for size, _ in loads} >= {4, 8, 16}
    assert all(aligned == size for size, aligned in loads)


def test_missing_compiler_error_says_what_to_install(compiling, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="Slang is not installed: pip install slangpy"):
        compiling.build(tmp_path / "kernels.bin")
    assert not list(tmp_path.iterdir())


def test_crashed_compiler_gives_a_one_line_error(compiling, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(compiling, "_slang", lambda: None)
    monkeypatch.setattr(compiling, "_slang_version", lambda: "0.43")
    monkeypatch.setattr(compiling, "_compiled", os._exit)  # what a process of the pool runs
    with pytest.raises(SystemExit, match=r"Slang crashed while it compiled kernels \(slangpy 0\.43\)"):
        compiling._compile_all([1, 1])


def test_damaged_archive_does_not_prevent_compilation(compiling, tmp_path):
    path, code = tmp_path / "kernels.bin", bytes(range(100))
    packed = lzma.compress(code)
    variant = {"at": 0, "bytes": len(packed), "kernels": {"one": (0, 40, "ab"), "two": (40, 60, "cd")}}
    text = json.dumps({"variants": {"plain": variant}}).encode()
    whole = compiling.MARK + len(text).to_bytes(4, "little") + text + packed
    path.write_bytes(whole)
    assert compiling._kept(path) == {"ab": code[:40], "cd": code[40:]}
    other = whole.replace(b"variants", b"variance")
    for damaged in (b"", whole[:5], whole[:10], whole[:50], whole[:-9], whole[: -len(packed)], whole[1:], other):
        path.write_bytes(damaged)
        assert compiling._kept(path) == {}
    assert compiling._kept(tmp_path / "none.bin") == {}


def test_kernels_are_wanted_for_a_gpu_that_lacks_nothing_else(monkeypatch):
    found = runpy.run_path(str(ROOT / "native" / "gpu" / "wanted.py"))
    has_cuda, error = False, DeviceError("this build of Woolly has no Vulkan kernels", code="no_kernels")

    def find_level():
        raise error

    are_wanted = found["are_kernels_wanted"]
    monkeypatch.setitem(are_wanted.__globals__, "find_level", find_level)
    monkeypatch.setattr("woolly.runtime.cuda.backend.CudaBackend.is_available", lambda _: has_cuda)
    assert are_wanted()
    has_cuda = True
    assert not are_wanted()
    has_cuda, error = False, DeviceError("there is no Vulkan here", code="no_driver")
    assert not are_wanted()
    error = RequestError("Vulkan knows no GPU")
    assert not are_wanted()
