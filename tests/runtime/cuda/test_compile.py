"""NVRTC takes every kernel, without a warning, and makes of each source what the archive says."""

import sys

import pytest

from native.cuda import compile as compiling

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or compiling.find_nvrtc() is None, reason="NVRTC is a package for Linux"
)
# PTX, for machine code would take several times as long: of the generation with all instructions in use. The oldest is
# rare, for the emulated GPU has its branches; but some sources have kernels for that one alone.
TARGET = "compute_90a"
OLDEST = [path for path in compiling.sources() if path.stem in ("linear_mma", "moe_mma")]
UNITS = [
    *((path, compiling.PORTABLE if path in OLDEST else TARGET) for path in compiling.sources()),
    *(
        pytest.param(path, TARGET if path in OLDEST else compiling.PORTABLE, marks=pytest.mark.rare)
        for path in compiling.sources()
    ),
]
INCLUDE = '#include "primitives/common.cuh"\n'


@pytest.fixture(scope="module")
def compiler():
    return compiling.Compiler(compiling.find_nvrtc())


@pytest.mark.parametrize(("source", "target"), UNITS, ids=lambda part: getattr(part, "stem", part))
def test_every_source_compiles_without_a_warning(source, target, compiler):
    image, kernels, log = compiler.compile(source, target, quick=True)
    assert log == ""
    assert image.startswith(b"//") and len(set(kernels)) == len(kernels)
    assert kernels or (source in OLDEST) == (target == TARGET)  # some have none for the other generations
    # A kernel is found again by its name alone, with the kind of tiles that it is compiled for.
    for kernel in kernels:
        unit = compiling.unit_of(kernel)
        assert unit is not None and unit[0] == source and unit[1] in compiling.parts(source), kernel


def test_source_with_an_error_is_rejected_with_its_line(compiler, tmp_path):
    (tmp_path / "wrong.cu").write_text(INCLUDE + "KERNEL(wrong)(const Batch* b) { b->none(); }\n")
    with pytest.raises(compiling.CompileError, match=r"wrong\.cu\(2\): error"):
        compiler.compile(tmp_path / "wrong.cu", TARGET)


def test_tile_type_is_compiled_separately(compiler):
    source = compiling.HERE / "experts" / "moe_down_gemv.cu"
    assert "q4_k" in compiling.parts(source) and compiling.parts(compiling.HERE / "weights" / "pack.cu") == [""]
    _, whole, _ = compiler.compile(source, TARGET, quick=True)
    _, kernels, log = compiler.compile(source, TARGET, "q4_k", quick=True)
    assert log == "" and sorted(kernels) == sorted(name for name in whole if "q4_k" in name) != []


def test_ptx_names_the_same_kernels(compiler, tmp_path):
    (tmp_path / "two.cu").write_text(INCLUDE + "KERNEL(a)(int n) {}\nKERNEL(b)(const Batch* b) {}\n")
    for quick in (False, True):
        image, kernels, _ = compiler.compile(tmp_path / "two.cu", compiling.PORTABLE, quick=quick)
        assert sorted(kernels) == ["a", "b"] and image.startswith(b"//") and image.endswith(b"\0")


def test_quick_compilation_reports_warnings_too(compiler, tmp_path):
    (tmp_path / "warned.cu").write_text(INCLUDE + "KERNEL(a)(int* p) { int none; *p = 1; }\n")
    for quick in (False, True):
        _, _, log = compiler.compile(tmp_path / "warned.cu", TARGET, quick=quick)
        assert "warned.cu(2): warning" in log and '"none" was declared but never referenced' in log
