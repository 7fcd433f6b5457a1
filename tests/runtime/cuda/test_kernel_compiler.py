"""Kernels of a build from source: compiled at their first use, kept, and compiled again only if they must be."""

import logging
import os
import shutil
import threading
from pathlib import Path

import pytest

from native.cuda import compile as compiling
from tests.runtime.cuda.fake import ATTRIBUTES, FakeLibrary
from woolly.errors import DeviceError, StoreError
from woolly.runtime.cuda import device as module
from woolly.runtime.cuda.backend import CudaBackend, _warn
from woolly.runtime.cuda.device import find_level, open_device
from woolly.runtime.cuda.kernel_archive import Archive
from woolly.runtime.cuda.kernel_compiler import KernelCompiler
from woolly.runtime.cuda.libcuda import Driver
from woolly.runtime.gpu.device import Address

SOURCES = {
    "rows.cu": "KERNEL(add)() {}\nKERNEL(scale)() {}\n",
    "linear_gemv.cu": "#define ONE(name) KERNEL_THREADS(512, linear_gemv__##name)() {}\n",
    "rank.cu": "KERNEL(rank_parts)() {}\n",
    "pack.cu": "#define PACK(name) KERNEL(pack_##name)() {}\n",
    "weights/tile.cuh": "#define TILE_TYPES(X) \\\n    X(q8_0, Q8_0) \\\n    X(q4_k, Q4_K)\n",
}
NAMES = {"rows": ["add", "scale"], "rank": ["rank_parts"], "pack": ["pack_q8_0", "pack_q4_k"]}


class FakeCompiler:
    """Makes an image that names what it was made of."""

    version = "12.9"
    refused = None

    def __init__(self, path):
        self.made = []

    def compile(self, source, target, kind=""):
        self.made.append((source.stem, kind))
        FakeCompiler.all.append((source.stem, kind))
        if source.stem == FakeCompiler.refused:
            raise FakeCompiler.error(f"{source.name}(1): error: wrong")
        names = NAMES.get(source.stem) or [f"{source.stem}__{kind}", f"{source.stem}__{kind}_long"]
        return f"{source.stem} {kind} {target} {source.read_text()}".encode(), names, ""


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "sources"
    for name, text in SOURCES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    shutil.copy(compiling.__file__, folder / "compile.py")
    return folder


@pytest.fixture
def kernel_compiler(folder, tmp_path, monkeypatch):
    """A kernel compiler over a few sources and a compiler that needs no NVRTC; `made` has what was compiled."""
    kernel_compiler = KernelCompiler(folder, tmp_path / "cache")
    FakeCompiler.all, FakeCompiler.error = [], kernel_compiler._compile_module.CompileError
    monkeypatch.setattr(FakeCompiler, "refused", None)
    monkeypatch.setattr(kernel_compiler._compile_module, "find_nvrtc", lambda: Path("libnvrtc.so"))
    monkeypatch.setattr(kernel_compiler._compile_module, "Compiler", FakeCompiler)
    return kernel_compiler


ALWAYS = [("pack", ""), ("rank", "")]


def files(tmp_path):
    return sorted(path.name for path in (tmp_path / "cache").rglob("*") if path.is_file())


def test_kernels_of_a_model_are_compiled_once(kernel_compiler, tmp_path, caplog):
    jit = kernel_compiler.kernels_of("sm_90a")
    jit.precompile(["add", "linear_gemv__q4_k", "linear_gemv__q4_k_long", "scale"])
    assert sorted(FakeCompiler.all) == sorted([("linear_gemv", "q4_k"), ("rows", ""), *ALWAYS])
    assert "compiling CUDA kernels of this model for sm_90a: 4 units" in caplog.text
    assert files(tmp_path) == ["linear_gemv-q4_k.bin", "pack.bin", "rank.bin", "rows.bin"]
    image = jit.find("linear_gemv__q4_k_long").data()
    assert image.startswith(b"linear_gemv q4_k sm_90a")
    # The next process compiles nothing and says nothing; another kind of weights compiles that kind alone.
    caplog.clear()
    FakeCompiler.all.clear()
    later = kernel_compiler.kernels_of("sm_90a")
    later.precompile(["add", "linear_gemv__q4_k"])
    assert FakeCompiler.all == [] and caplog.text == "" and later.find("linear_gemv__q4_k").data() == image
    later.precompile(["linear_gemv__q8_0", "add"])
    assert FakeCompiler.all == [("linear_gemv", "q8_0")]


def test_undeclared_kernel_is_compiled_on_demand(kernel_compiler):
    jit = kernel_compiler.kernels_of("sm_90a")
    assert jit.find("scale").kernels == ("add", "scale") and jit.find("add") is jit.find("scale")
    assert FakeCompiler.all == [("rows", "")]
    assert jit.find("no_such_kernel") is None and jit.find("linear_gemv__none") is None


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: b"", lambda data: data[:50] + b"x" + data[51:]]
)
def test_damaged_cache_file_is_compiled_again(damage, kernel_compiler, tmp_path):
    kernel_compiler.kernels_of("sm_90a").find("add")
    (path,) = (tmp_path / "cache").rglob("rows.bin")
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert kernel_compiler.kernels_of("sm_90a").find("add").data().startswith(b"rows")
    assert FakeCompiler.all == [("rows", "")] * 2 and path.read_bytes() == whole


def test_other_sources_targets_and_compilers_have_their_own_files(kernel_compiler, folder, monkeypatch):
    kernel_compiler.kernels_of("sm_90a").find("add")
    kernel_compiler.kernels_of("sm_80").find("add")
    monkeypatch.setattr(FakeCompiler, "version", "13.0")
    kernel_compiler.kernels_of("sm_90a").find("add")
    (folder / "weights" / "tile.cuh").write_text(SOURCES["weights/tile.cuh"] + "// changed\n")
    kernel_compiler.kernels_of("sm_90a").find("add")
    assert len(FakeCompiler.all) == 4


def test_recently_used_compilations_are_kept_and_others_removed(kernel_compiler, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    stranger = cache / "notes"
    stranger.mkdir(parents=True)
    folders = {}
    for day, version in enumerate(["12.1", "12.2", "12.3", "12.4"]):
        monkeypatch.setattr(FakeCompiler, "version", version)
        jit = kernel_compiler.kernels_of("sm_90a")
        jit.find("add")
        (folders[version],) = {path for path in cache.iterdir() if path != stranger} - set(folders.values())
        os.utime(folders[version], (day, day))
    # The oldest was used again.
    monkeypatch.setattr(FakeCompiler, "version", "12.1")
    old = kernel_compiler.kernels_of("sm_90a")
    monkeypatch.setattr(FakeCompiler, "version", "12.5")
    kernel_compiler.kernels_of("sm_90a").find("add")
    left = set(cache.iterdir())
    assert stranger in left and folders["12.2"] not in left
    assert {folders["12.1"], folders["12.3"], folders["12.4"]} < left and len(left) == 5
    # A process that uses a removed folder goes on, and its units are there again.
    shutil.rmtree(folders["12.1"])
    assert old.find("add").data().startswith(b"rows") and (folders["12.1"] / "sm_90a" / "rows.bin").exists()


def test_concurrent_processes_leave_complete_files(kernel_compiler, tmp_path):
    jits = [kernel_compiler.kernels_of("sm_90a") for _ in range(4)]
    threads = [
        threading.Thread(target=jit.precompile, args=(["add", "linear_gemv__q8_0"],)) for jit in jits for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert files(tmp_path) == ["linear_gemv-q8_0.bin", "pack.bin", "rank.bin", "rows.bin"]
    FakeCompiler.all.clear()
    assert kernel_compiler.kernels_of("sm_90a").find("add").data().startswith(b"rows") and FakeCompiler.all == []


def test_two_threads_compile_one_unit_once(kernel_compiler, monkeypatch):
    jit, begun = kernel_compiler.kernels_of("sm_90a"), threading.Event()
    compile, entered = FakeCompiler.compile, []

    def slow(self, *arguments):
        entered.append(arguments)
        begun.wait(5)
        return compile(self, *arguments)

    monkeypatch.setattr(FakeCompiler, "compile", slow)
    threads = [threading.Thread(target=jit.find, args=("add",)) for _ in range(3)]
    for thread in threads:
        thread.start()
    begun.set()
    for thread in threads:
        thread.join()
    assert len(entered) == 1


def test_unwritable_cache_warns_once(kernel_compiler, tmp_path, caplog):
    (tmp_path / "cache").write_text("no folder")
    jit = kernel_compiler.kernels_of("sm_90a")
    with caplog.at_level(logging.WARNING):
        jit.precompile(["add", "scale"])
    assert caplog.text.count("cannot be cached") == 1
    assert jit.find("add").data().startswith(b"rows") and len(FakeCompiler.all) == 3


def test_compiler_error_is_one_line(kernel_compiler, monkeypatch):
    monkeypatch.setattr(FakeCompiler, "refused", "rows")
    with pytest.raises(
        DeviceError, match=r"NVRTC cannot compile a kernel of Woolly: rows.cu\(1\): error: wrong"
    ) as caught:
        kernel_compiler.kernels_of("sm_90a").precompile(["add"])
    assert caught.value.code == "no_kernels"


@pytest.mark.parametrize(
    ("architecture", "target"), [(90, "sm_90a"), (86, "sm_86"), (120, "sm_120a"), (121, "compute_80")]
)
def test_each_generation_has_its_target(architecture, target, kernel_compiler):
    assert kernel_compiler.target(architecture) == target


def test_old_driver_takes_no_ptx(kernel_compiler):
    assert kernel_compiler.target(90, 12_000) == "sm_90a"
    with pytest.raises(DeviceError, match="needs driver 575 or later"):
        kernel_compiler.target(121, 12_000)


@pytest.fixture
def library(kernel_compiler, tmp_path, monkeypatch):
    """The driver of a machine whose build has no archive."""
    library = FakeLibrary()
    monkeypatch.setattr(module, "Archive", lambda: Archive(tmp_path / "none.bin"))
    monkeypatch.setattr(module.KernelCompiler, "find", lambda: kernel_compiler)
    monkeypatch.setattr(module, "open_driver", lambda: Driver(library))
    return library


def test_device_without_an_archive_launches_compiled_kernels(library):
    assert find_level() == "sm_90"
    device = open_device(0, Driver(library))
    device.precompile(["add"])
    assert sorted(FakeCompiler.all) == sorted([("rows", ""), *ALWAYS]) and library.calls["cuModuleLoadData"] == 0
    device.launch("add", (1,), 32, 0, (Address(0),))
    device.launch("scale", (1,), 32, 0, (Address(0),))
    assert library.calls["cuModuleLoadData"] == 1 and library.calls["cuLaunchKernel"] == 2
    device.close()


def test_missing_compiler_error_says_how_to_get_it(library, kernel_compiler, monkeypatch):
    monkeypatch.setattr(kernel_compiler._compile_module, "find_nvrtc", lambda: None)
    for ask in (find_level, lambda: open_device(0, Driver(library))):
        with pytest.raises(DeviceError, match="pip install nvidia-cuda-nvrtc-cu12") as caught:
            ask()
        assert caught.value.code == "no_kernels"


def test_gpu_that_lacks_only_kernels_gives_a_warning(library, kernel_compiler, monkeypatch, caplog):
    monkeypatch.setattr(kernel_compiler._compile_module, "find_nvrtc", lambda: None)
    _warn.cache_clear()
    with caplog.at_level(logging.WARNING, "woolly.runtime"):
        assert not any(CudaBackend(level=find_level).is_available() for _ in range(2))
    assert len(caplog.records) == 1 and "is not used: this build of Woolly" in caplog.text


def test_machine_without_a_gpu_gives_no_warning(caplog):
    with caplog.at_level(logging.WARNING, "woolly.runtime"):
        assert not CudaBackend(level=_no_gpu).is_available()
    assert not caplog.records


def _no_gpu():
    raise DeviceError("no NVIDIA GPU was found", code="no_driver")


def test_library_that_is_not_nvrtc_gives_a_one_line_error(folder, tmp_path, monkeypatch):
    kernel_compiler = KernelCompiler(folder, tmp_path / "cache")
    monkeypatch.setenv("CUDA_NVRTC", str(tmp_path / "libnothing.so"))
    with pytest.raises(DeviceError, match=r"libnothing.so cannot be used as NVRTC.*set CUDA_NVRTC") as caught:
        kernel_compiler.kernels_of("sm_90a")
    assert caught.value.code == "no_kernels"


def test_compiler_without_a_version_gives_a_one_line_error(kernel_compiler, monkeypatch):
    def version(_):
        raise FakeCompiler.error("NVRTC failed: internal error")

    monkeypatch.setattr(FakeCompiler, "version", property(version))
    with pytest.raises(DeviceError, match=r"cannot be used as NVRTC.*internal error") as caught:
        kernel_compiler.kernels_of("sm_90a")
    assert caught.value.code == "no_kernels"


def test_without_a_home_kernels_are_compiled_for_this_process_only(kernel_compiler, monkeypatch, caplog):
    def no_home():
        raise StoreError("there is no home folder")

    monkeypatch.setattr("woolly.runtime.cuda.kernel_compiler.models_folder", no_home)
    kernel_compiler._cache = None
    with caplog.at_level(logging.WARNING, "woolly.runtime"):
        jit = kernel_compiler.kernels_of("sm_90a")
        jit.precompile(["add"])
    assert "at the next start: there is no home folder" in caplog.text
    n_made = len(FakeCompiler.all)
    assert "add" in jit.find("add").kernels and len(FakeCompiler.all) == n_made


def test_build_without_sources_says_so(library, monkeypatch):
    monkeypatch.setattr(module.KernelCompiler, "find", lambda: None)
    with pytest.raises(DeviceError, match="no CUDA kernels, nor their sources"):
        find_level()


def test_old_gpu_is_rejected_before_compilation(library, monkeypatch):
    monkeypatch.setitem(ATTRIBUTES, 75, 7)
    with pytest.raises(DeviceError, match="sm_80 or later is needed"):
        open_device(0, Driver(library))
    assert FakeCompiler.all == []


def test_clone_has_the_sources():
    kernel_compiler = KernelCompiler.find()
    assert kernel_compiler is not None and kernel_compiler._folder.samefile(compiling.HERE)
