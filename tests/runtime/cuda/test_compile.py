"""NVRTC takes every kernel, without a warning, and makes of each source what the archive says."""

import sys

import pytest

from native.cuda import compile as compiling

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or compiling.find_nvrtc() is None, reason="NVRTC is a package for Linux"
)
# PTX of the generation with all instructions in use: machine code would take several times as long.
TARGET = "compute_90a"


@pytest.fixture(scope="module")
def compiler():
    return compiling.Compiler(compiling.find_nvrtc())


@pytest.mark.parametrize("source", compiling.sources(), ids=lambda path: path.stem)
def test_every_source_compiles_without_a_warning(source, compiler):
    image, kernels, log = compiler.compile(source, TARGET)
    assert log == ""
    assert image.startswith(b"//") and len(set(kernels)) == len(kernels)  # some have none for this generation


def test_a_source_with_a_fault_is_refused_with_its_line(compiler, tmp_path):
    (tmp_path / "wrong.cu").write_text('#include "common.cuh"\nKERNEL(wrong)(const Batch* b) { b->none(); }\n')
    with pytest.raises(compiling.CompileError, match=r"wrong\.cu\(2\): error"):
        compiler.compile(tmp_path / "wrong.cu", TARGET)


def test_a_kind_of_tiles_is_compiled_by_itself(compiler):
    source = compiling.HERE / "moe_products.cu"
    assert "q4_k" in compiling.parts(source) and compiling.parts(compiling.HERE / "pack.cu") == [""]
    _, whole, _ = compiler.compile(source, TARGET)
    _, kernels, log = compiler.compile(source, TARGET, "q4_k")
    assert log == "" and sorted(kernels) == sorted(name for name in whole if "q4_k" in name) != []


def test_ptx_names_the_same_kernels(compiler, tmp_path):
    (tmp_path / "two.cu").write_text('#include "common.cuh"\nKERNEL(a)(int n) {}\nKERNEL(b)(const Batch* b) {}\n')
    image, kernels, _ = compiler.compile(tmp_path / "two.cu", compiling.PORTABLE)
    assert sorted(kernels) == ["a", "b"] and image.startswith(b"//") and image.endswith(b"\0")
