"""native/gpu/compile.py: the archive is that of the sources, and no float operation may be fused."""

import importlib.util
import struct

import pytest

from tests.test_house import ROOT
from woolly.runtime.vulkan.archive import ARCHIVE, SpirvArchive


@pytest.fixture(scope="module")
def compiling():
    spec = importlib.util.spec_from_file_location("compile_gpu", ROOT / "native" / "gpu" / "compile.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def archive():
    if not ARCHIVE.exists():
        pytest.skip("there is no archive: native/gpu/compile.py makes it")
    return SpirvArchive()


def test_the_archive_has_the_kernels_of_these_sources(compiling, archive):
    assert archive.sources == compiling.sources_digest(), "the sources have changed: run native/gpu/compile.py"
    names = sorted(name for name, *_ in compiling.kernels())
    assert len(names) == len(set(names))
    for variant in compiling.VARIANTS:
        assert archive.names(variant) == names


def test_every_float_operation_is_exact(compiling, archive):
    for name in ("rms_norm", "linear_one_q4_k", "attend_f16_128"):
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
