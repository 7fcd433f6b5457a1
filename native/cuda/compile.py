"""Compiles the kernels of this folder by NVRTC into one archive, which woolly/runtime/cuda/kernel_archive.py reads.

A build without an archive ships this file and the sources: woolly/runtime/cuda/kernel_compiler.py compiles what a
model needs.

    python native/cuda/compile.py                        for the GPUs of this machine
    python native/cuda/compile.py --targets all          for all, as a release has it
    python native/cuda/compile.py --wanted               only prints what WOOLLY_CUDA_TARGETS has a build compile
    python native/cuda/compile.py --targets sm_90a --only pack
                                                         a check of one file; nothing is written

NVRTC is the package nvidia-cuda-nvrtc-cu12, or the library that CUDA_NVRTC names. Nothing else of CUDA is needed.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import importlib.util
import json
import lzma
import os
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
OUTPUT = HERE.parent.parent / "woolly" / "runtime" / "cuda" / "kernels.bin"
MARK = b"woollyk2"

# Cubins of the generations that differ, and PTX that the driver compiles for all others. A trailing letter means that a
# cubin is only for this generation, with all its instructions.
KNOWN = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a", "compute_80")
# Targets of a release: sm_86 and sm_89 run the cubins of sm_80, which keeps the wheel small.
ALL = tuple(target for target in KNOWN if target not in ("sm_86", "sm_89"))
PORTABLE = "compute_80"
# Sources that take long to compile. Each tile kind is compiled separately and in parallel, and a GPU loads only the
# kinds of a model.
BY_KIND = (
    "linear_splitk",
    "linear_rows8",
    "linear_heads",
    "linear_mma",
    "linear_gemv",
    "linear_rows32",
    "linear_wgmma",
    "moe_rows8",
    "moe_mma",
    "moe_down_gemv",
    "moe_wgmma",
)


# Instructions have 16 bytes, and bytes at the same offset are similar. PTX is text.
SIXTEENS = {"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 0, "lp": 4, "pb": 4}
TEXT = {"id": lzma.FILTER_LZMA2, "preset": 9}


def own_targets() -> tuple[str, ...]:
    """Return the targets of this machine's GPUs, with PTX if one is of another generation; () without a GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ()
    count, numbers = ctypes.c_int(), set()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return ()
    for device in range(count.value):
        major, minor = ctypes.c_int(), ctypes.c_int()
        driver.cuDeviceGetAttribute(ctypes.byref(major), 75, device)
        driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
        numbers.add(f"sm_{10 * major.value + minor.value}")
    known = [target for target in KNOWN if target.rstrip("a") in numbers]
    return tuple(known) if len(known) == len(numbers) else (*known, PORTABLE)


def wanted_targets(named: str = "", default: str = "none") -> tuple[str, ...]:
    """Return the targets of `named` or WOOLLY_CUDA_TARGETS: own, all, none, or a comma-separated list."""
    named = named or os.environ.get("WOOLLY_CUDA_TARGETS") or default
    if named == "own":
        return own_targets()
    return {"all": ALL, "none": ()}.get(named) or tuple(target for target in named.split(",") if target != "none")


class CompileError(Exception):
    """NVRTC rejected a source."""


def find_nvrtc() -> Path | None:
    """Return the NVRTC library of CUDA_NVRTC or of the package, or None."""
    if named := os.environ.get("CUDA_NVRTC"):
        return Path(named)
    try:
        found = importlib.util.find_spec("nvidia.cuda_nvrtc")
    except ModuleNotFoundError:
        return None
    for folder in (found.submodule_search_locations or []) if found else []:
        for path in sorted(Path(folder).glob("lib/libnvrtc.so.*")):
            return path
    return None


class Compiler:
    """NVRTC compiler."""

    def __init__(self, path: Path) -> None:
        # NVRTC opens this library by name, which succeeds if it is already loaded.
        for builtins in path.parent.glob("libnvrtc-builtins.so.*"):
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
        self._library = ctypes.CDLL(str(path))
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p

    @property
    def version(self) -> str:
        """Version, such as 12.9."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        return f"{major.value}.{minor.value}"

    def compile(
        self, source: Path, target: str, kind: str = "", *, quick: bool = False
    ) -> tuple[bytes, list[str], str]:
        """Return the image of a file for a target, the names of its kernels, and the compiler's log.

        `kind` selects the kernels of one tile kind. `quick` compiles PTX without optimization.
        """
        program = ctypes.c_void_p()
        text = source.read_bytes()
        self._check(self._library.nvrtcCreateProgram(ctypes.byref(program), text, source.name.encode(), 0, None, None))
        options = [
            f"--gpu-architecture={target}",
            "--std=c++17",
            f"--include-path={HERE}",
            "--device-as-default-execution-space",
            # The source decides whether a * b + c rounds once or twice, so that all kernels compute the same bits.
            "--fmad=false",
        ]
        if quick and target.startswith("compute_"):
            options.append("--Ofast-compile=max")
        if kind:
            options += [f"--define-macro=WOOLLY_NAME={kind}", f"--define-macro=WOOLLY_TYPE={kinds()[kind]}"]
        array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        try:
            result = self._library.nvrtcCompileProgram(program, len(options), array)
            log = self._read(program, "ProgramLog").decode(errors="replace").rstrip("\0\n")
            if result:
                raise CompileError(f"{f'{source.name} {kind}'.rstrip()} for {target}:\n{log}")
            ptx = self._read(program, "PTX")
            image = ptx if target.startswith("compute_") else self._read(program, "CUBIN")
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))
        return image, re.findall(r"\.entry\s+(\w+)", ptx.decode()), log

    def _read(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        out = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{what}")(program, out))
        return out.raw

    def _check(self, result: int) -> None:
        if result:
            raise CompileError(f"NVRTC failed: {self._library.nvrtcGetErrorString(result).decode()}")


def sources(only: str | None = None) -> list[Path]:
    """Return the source files, or only the one with the given name."""
    return [path for path in sorted(HERE.rglob("*.cu")) if only in (None, path.name, path.stem)]


def kinds() -> dict[str, str]:
    """Return the tile kinds: their names in kernels, and as C++ types."""
    (listed,) = re.findall(r"#define TILE_TYPES\(X\)((?:.*\\\n)*.*)", (HERE / "weights" / "tile.cuh").read_text())
    return dict(re.findall(r"X\((\w+), (\w+)\)", listed))


def parts(source: Path) -> list[str]:
    """Return the tile kinds that a source is compiled for, or [""]."""
    return list(kinds()) if source.stem in BY_KIND else [""]


@functools.cache
def _names() -> list[tuple[str, re.Pattern[str], Path]]:
    """Return (prefix, pattern, source) of kernel names, either declared or pasted from a prefix and parameters."""
    out = []
    for source in sources():
        text = source.read_text()
        names = re.findall(r"\bKERNEL\w*\((?:\w+, )*([a-z]\w*)\)", text) + re.findall(r"\b[a-z]\w*(?:##\w+)+", text)
        for name in {*names, source.stem} - {"name"}:  # "name" is a macro parameter
            head = name.partition("##")[0]
            out.append((head, re.compile(re.escape(head) + (r"\w+" if "##" in name else "")), source))
        out.append((f"{source.stem}_", re.compile(rf"{source.stem}_\w+"), source))
    return out


def unit_of(kernel: str) -> tuple[Path, str] | None:
    """Return the source of a kernel and its tile kind or "", or None if no source has the kernel."""
    found = [(head, source) for head, name, source in _names() if name.fullmatch(kernel)]
    if not found:
        return None
    # The longest prefix wins: moe_gemv_glu__ is in moe_rows8.cu, moe_one_ in moe_down_gemv.cu.
    source = max(found, key=lambda one: len(one[0]))[1]
    if source.stem not in BY_KIND:
        return source, ""
    rest = kernel.partition("__")[2] + "_"
    kind = max((kind for kind in kinds() if rest.startswith(f"{kind}_")), key=len, default="")
    return (source, kind) if kind else None


def archive(images: dict[str, list[tuple[bytes, list[str]]]]) -> bytes:
    """Return the bytes of an archive, given (image, kernels) pairs by target."""
    index: dict[str, list[dict[str, object]]] = {}
    data = b""
    for target, made in images.items():
        index[target] = []
        for pack in packs(made):
            filters = [TEXT if target.startswith("compute_") else SIXTEENS]
            packed = lzma.compress(b"".join(image for image, _ in pack), filters=filters)
            entries = [[len(image), kernels] for image, kernels in pack]
            index[target].append({"at": len(data), "bytes": len(packed), "images": entries})
            data += packed
    head = json.dumps(index, separators=(",", ":")).encode()
    return MARK + len(head).to_bytes(4, "little") + head + data


def packs(made: list[tuple[bytes, list[str]]]) -> list[list[tuple[bytes, list[str]]]]:
    """Group the images to be compressed together: adjacent tile kinds of one source, and all of attention."""
    out: list[list[tuple[bytes, list[str]]]] = []
    before = ""
    for one in made:
        if not one[1]:  # some sources have no kernels for a generation
            continue
        family, is_of_kind, _ = one[1][0].partition("__")
        # Attention sources share code. Compressed together, they take a sixth less space, and 0.1 s to open.
        if family.startswith("attend_"):
            family, is_of_kind = "attend", "_"
        if is_of_kind and family == before:
            out[-1].append(one)
        else:
            out.append([one])
        before = family
    return out


def main() -> int:
    """Compile as the command line says. Return 1 if a source is rejected, 2 if there is no NVRTC."""
    parser = argparse.ArgumentParser(description="Compiles CUDA kernels by NVRTC.")
    parser.add_argument("--targets", default="", help="all, own, none, or names such as sm_90a,compute_80")
    parser.add_argument("--only", help="one source file; nothing is written")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--wanted", action="store_true", help="only print the targets, separated by commas")
    options = parser.parse_args()
    if options.wanted:
        print(",".join(wanted_targets(options.targets)))
        return 0
    targets = wanted_targets(options.targets, default="own")
    if not targets:
        print("there is no GPU to compile for: name targets (docs/use/cuda.md)", file=sys.stderr)
        return 1
    path = find_nvrtc()
    if path is None:
        print("NVRTC was not found: pip install nvidia-cuda-nvrtc-cu12, or set CUDA_NVRTC", file=sys.stderr)
        return 2
    files = sources(options.only)
    if not files:
        print(f"there is no source {options.only}", file=sys.stderr)
        return 1
    compiler, start = Compiler(path), time.monotonic()

    def work(job: tuple[str, Path, str]) -> tuple[bytes, list[str]] | CompileError:
        target, source, kind = job
        began = time.monotonic()
        try:
            image, kernels, log = compiler.compile(source, target, kind)
        except CompileError as error:
            return error
        took, name = time.monotonic() - began, f"{source.name} {kind}".rstrip()
        print(f"{name} {target}: {len(kernels)} kernels, {len(image):,} bytes, {took:.1f} s", file=sys.stderr)
        if log:
            print(log, file=sys.stderr)
        return image, kernels

    jobs = [(target, file, kind) for target in targets for file in files for kind in parts(file)]
    # Longest first, so that no processor waits for them at the end.
    jobs.sort(key=lambda job: job[1].stem not in (*BY_KIND, "linear_rows8"))
    with ThreadPoolExecutor(options.jobs) as pool:
        done = list(pool.map(work, jobs))
    failed = [str(one) for one in done if isinstance(one, CompileError)]
    if failed:
        print("\n".join(failed), file=sys.stderr)
        return 1
    images: dict[str, list[tuple[bytes, list[str]]]] = {}
    for (target, *_), made in zip(jobs, done, strict=True):
        assert not isinstance(made, CompileError)
        images.setdefault(target, []).append(made)
    if options.only is None:
        data = archive(images)
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_bytes(data)
        print(f"{options.output}: {len(data):,} bytes, {time.monotonic() - start:.1f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
