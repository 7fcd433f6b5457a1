"""Compiles native/gpu with Slang into one archive of SPIR-V and Metal source, woolly/runtime/vulkan/kernels.bin.

    pip install slangpy
    python native/gpu/compile.py [--missing] [OUT]

Calls Slang through the C API of the library in the package slangpy, with one process per core. The archive is
identical on all systems. Kernels with unchanged sources are copied from an existing archive.
"""

from __future__ import annotations

import argparse
import ctypes as c
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import lzma
import multiprocessing
import os
import re
import struct
import sys
import zlib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MARK = b"woollyv1"
OUT = HERE.parent.parent / "woolly" / "runtime" / "vulkan" / "kernels.bin"
_FORM = 2  # incremented when `Slang.compile` or `exact` changes its output for the same source
VARIANTS = {"plain": (), "double": ("-DFMA_BY_DOUBLE",), "metal": ()}
# Variants that are compressed together, which saves 0.21 MB of 0.87. The first can be opened without the others.
PACKS = (("plain", "double"), ("metal",))
# Prepended to every Metal kernel: otherwise Apple's compiler may contract a product and a sum into an fma.
_EXACT = "#pragma METAL fp contract(off)\n"

ALIKE = ("Q4_K", "Q5_K", "IQ4_XS", "TQ1_0", "TQ2_0")  # weights with one integer factor per 32 columns
# Weights of which a thread takes two runs of 16 columns that share bytes, instead of 32 consecutive columns.
STRANDED = ("Q4_K", "Q5_K", "Q6_K")
# Small-batch products with weights in super-blocks: rows of x and of weights per group.
SUPERS = {"one": (1, 8), "two": (2, 8), "four": (4, 4)}
# Weights computed with matrix units: common super-block types, each with the base of its byte planes. 0: bytes are used
# unchanged, because 32 columns have one factor.
TILED = {"Q2_K": 1, "Q3_K": -1, "Q4_K": 0, "Q5_K": 0, "Q6_K": 256, "IQ4_XS": 0}
# Weight rows and x rows per group, tiles of a subgroup down and across, columns between two barriers.
FORMS = {
    "tiles": ("OUTS=64", "ROWS=128", "HIGH=2", "WIDE=4", "COLUMNS=128"),
    "squares": ("OUTS=64", "ROWS=64", "HIGH=1", "WIDE=4", "COLUMNS=128"),
    "strips": ("OUTS=64", "ROWS=32", "HIGH=1", "WIDE=2", "COLUMNS=128"),
    "slips": ("OUTS=64", "ROWS=16", "HIGH=1", "WIDE=1", "COLUMNS=128"),
}
HADAMARD, HADAMARD_DEFINES = ("Q4",), ("HADAMARD_K=1", "HADAMARD_V=1")  # caches with rotated heads
FLOATS = {"f32": "32", "f16": "16", "bf16": "-16"}
ELEMENTS = (
    *("add", "scale", "mul", "mul_weight", "add_weight", "slice", "concat", "output_rows", "softcap", "unary", "glu"),
    *("add_lora", "rope", "clamp", "clip", "xielu", "lerp", "mix_streams", "embed_token_type", "pool", "scatter_rows"),
    *("input", "embedding_bag", "merge_patches_concat", "merge_patches_interleave", "merge_patches_mean"),
    *("conv1d", "gather_conv1d"),
)
SCANS = ("delta_net", "wkv7", "lightning_attention", "scan_mamba2")
NORMS = ("rms_norm", "layer_norm", "gaussian_topk", "match_rms", "vecdot")


def found(folder: str, interface: str) -> dict[str, dict[str, int]]:
    """Return the structs of an interface in the sources of a folder, by name, with their integer constants."""
    text = "\n".join(path.read_text() for path in sorted((HERE / folder).glob("*.slang")))
    structs = re.findall(rf"struct (\w+) : {interface} \{{\s*static const int ([^;]*);", text)
    return {name: {key: int(n) for key, n in re.findall(r"(\w+) = (\d+)", constants)} for name, constants in structs}


def kernels(variant: str = "plain") -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield name, source and definitions of every kernel of a variant."""
    yield from (("probe", "primitives/probe", ()), ("pack", "weights/pack", ()))
    for name in ("route", "order", "combine"):
        yield f"experts_{name}", f"experts/{name}", ()
    for name in ("causal_conv1d", "token_shift", "scan_mamba", "ngrams", "compress"):
        yield name, f"scans/{name}", ()
    for name in SCANS:
        yield name, "scans/scan", (f"OP={name.upper()}",)
    yield "hyper_connections", "rows/hyper_connections", ()
    for name in NORMS:
        yield name, "rows/norms", (f"OP={name.upper()}",)
    for name in ("logits", "keys", "feed"):
        yield f"rank_{name}", "rows/rank", (f"OP={name.upper()}",)
    for block in ("32", "256"):
        for number, name in enumerate(("quantize", "norm_quantize", "glu_quantize", "norm_quantize_rows")):
            yield f"{name}_{block}", "linears/quantize", (f"BLOCK={block}", f"FROM={number}")
        yield f"merge_quantize_{block}", "attention/merge", (f"BLOCK={block}",)
    for struct_name, constants in found("weights", "IWeight").items():
        name, weight = struct_name.lower(), f"WEIGHT={struct_name}"
        yield f"embed_{name}", "weights/embed", (weight,)
        if constants["columns"] == 256:
            strand = strand_of(struct_name)
            for kernel, (x_rows, rows) in SUPERS.items():
                yield f"linear_{kernel}_{name}", "linears/supers", (weight, strand, f"XROWS={x_rows}", f"ROWS={rows}")
        else:
            yield f"linear_one_{name}", "linears/one", (weight,)
        yield f"linear_few_{name}", "linears/few", (weight,)
        alike = f"ALIKE={int(struct_name in ALIKE)}"
        yield f"linear_many_{name}", "linears/many", (weight, alike)
    # Devices that need f64 have no matrix units, and those of Metal are untested.
    for struct_name in TILED if variant == "plain" else ():
        for name, form in FORMS.items():
            yield f"linear_{name}_{struct_name.lower()}", "linears/tiles", (*tiled(struct_name), *form)
    for name, bits in FLOATS.items():
        yield f"embed_{name}", "weights/embed", (f"FLOATS={bits}",)
        yield f"linear_{name}", "linears/floats", (f"FLOATS={bits}",)
    for name in ELEMENTS:
        yield name, "rows/elements", (f"OP={name.upper()}",)
    for struct_name in found("attention", "ICache"):
        name, cache = struct_name.lower(), (f"KV={struct_name}",)
        if struct_name in HADAMARD:
            yield f"attend_tile_{name}", "attention/tile", (*cache, *HADAMARD_DEFINES, "PLAIN=0")
            yield from row_kernels(name, (*cache, *HADAMARD_DEFINES), 2)
            continue
        yield f"store_{name}", "attention/store", cache
        yield f"attend_tile_{name}", "attention/tile", (*cache, "PLAIN=0")
        yield f"attend_tile_plain_{name}", "attention/tile", (*cache, "PLAIN=1")
        yield from row_kernels(name, cache, 4)
    yield "attend_staged_f16", "attention/staged", ("KV=F16", "PARTS=3")
    # Caches with rotated heads share the fast kernels, and all models one tile kernel, to save space.
    yield "index_topk", "attention/index_topk", ("ANY",)
    yield "store_any", "attention/store", ("ANY", *HADAMARD_DEFINES)
    yield "hadamard_any", "attention/hadamard", ("ANY", *HADAMARD_DEFINES)
    yield "attend_tile_any", "attention/tile", ("ANY", *HADAMARD_DEFINES, "PLAIN=0")
    yield from row_kernels("any", ("ANY", *HADAMARD_DEFINES), 3)


def row_kernels(name: str, cache: tuple[str, ...], n: int) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield the first n stages of row attention for a cache type, which `cache` defines."""
    for each in (1, 2, 5):
        for parts, what in enumerate(("attend", "attend_parts", "attend_merge", "attend_row")[:n]):
            yield f"{what}_{name}_{128 * each}", "attention/attend", (*cache, f"EACH={each}", f"PARTS={parts}")


def strand_of(struct_name: str) -> str:
    """Return the definition of a thread's part of a super-block."""
    return f"STRAND={f'{struct_name}_' if struct_name in STRANDED else 'Any'}Strand"


def tiled(struct_name: str) -> tuple[str, ...]:
    """Return the definitions of a weight type for matrix units."""
    return f"WEIGHT={struct_name}", f"BASE={TILED[struct_name]}", strand_of(struct_name)


def sources_digest() -> str:
    """Return the digest of all sources and of this file, stored in the archive."""
    digest = hashlib.sha256()
    for path in (Path(__file__), *sorted(HERE.rglob("*.slang"))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def kernel_digest(source: str, words: tuple[str, ...]) -> str:
    """Return the digest of a kernel: its source, transitive includes, definitions and the compiler version."""
    digest = hashlib.sha256(f"{_FORM} {_slang_version()} {' '.join(words)}".encode())
    for path in _included(f"{source}.slang"):
        digest.update(path.encode() + b"\0" + (HERE / path).read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@functools.cache
def _slang_version() -> str:
    return importlib.metadata.version("slangpy")


def _slang_folder() -> Path:
    """Return the folder of the compiler; SystemExit with the install command if it is missing."""
    found = importlib.util.find_spec("slangpy")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("Slang is not installed: pip install slangpy")
    return Path(found.submodule_search_locations[0])


@functools.cache
def _included(path: str) -> tuple[str, ...]:
    """Return a source and its transitive includes, each once."""
    found = [path]
    for one in re.findall(r'#include "(.*)"', (HERE / path).read_text()):
        found += (each for each in _included(one) if each not in found)
    return tuple(found)


class Slang:
    """The Slang compiler, loaded once."""

    def __init__(self) -> None:
        place = _slang_folder()
        names = [*place.glob("libslang-compiler.*"), *place.glob("slang-compiler.dll"), *place.glob("libslang.*")]
        self._library = c.CDLL(str(names[0]))
        p = c.c_void_p
        functions: tuple[tuple[Any, ...], ...] = (
            ("spCreateSession", p, c.c_char_p),
            ("spCreateCompileRequest", p, p),
            ("spProcessCommandLineArguments", c.c_int, p, c.POINTER(c.c_char_p), c.c_int),
            ("spCompile", c.c_int, p),
            ("spGetDiagnosticOutput", c.c_char_p, p),
            ("spGetEntryPointCodeBlob", c.c_int, p, c.c_int, c.c_int, c.POINTER(p)),
            ("spDestroyCompileRequest", None, p),
        )
        for name, result, *kinds in functions:
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, kinds
        self._session = p(self._library.spCreateSession(None))

    def compile(self, source: Path, *options: str, targets: tuple[str, ...] = ("spirv",)) -> list[bytes]:
        """Compile `main` of a source for each target in one request: parsing the source takes most of the time."""
        library = self._library
        request = c.c_void_p(library.spCreateCompileRequest(self._session))
        words = [str(source), *(word for target in targets for word in ("-target", target))]
        words += ["-entry", "main", "-stage", "compute", "-fp-mode", "precise"]
        # Not optimized: the optimizer would simplify (x + a) - a to x before `exact` forbids it. Drivers optimize.
        words += ["-O0", "-I", str(HERE), "-line-directive-mode", "none", *options]
        words += ["-o", "-"] if len(targets) == 1 else []  # needed because Slang 0.43 crashes on matrices
        array = (c.c_char_p * len(words))(*(word.encode() for word in words))
        failed = library.spProcessCommandLineArguments(request, array, len(words)) < 0 or library.spCompile(request) < 0
        text, made = (library.spGetDiagnosticOutput(request) or b"").decode(), list[bytes]()
        for i in range(0 if failed else len(targets)):
            blob = c.c_void_p()
            if library.spGetEntryPointCodeBlob(request, 0, i, c.byref(blob)) >= 0 and blob:
                made.append(_bytes_of(blob))
        library.spDestroyCompileRequest(request)
        if len(made) < len(targets):
            raise RuntimeError(f"{source.name} {' '.join(options)}: {text or 'no output'}")
        return made


def _bytes_of(blob: c.c_void_p) -> bytes:
    """Return the bytes of a Slang blob and release it. Its vtable: query, retain, release, address, size."""
    table = c.cast(blob, c.POINTER(c.POINTER(c.c_void_p))).contents
    address, size = (c.CFUNCTYPE(kind, c.c_void_p)(table[i]) for i, kind in ((3, c.c_void_p), (4, c.c_size_t)))
    data = c.string_at(address(blob), size(blob))
    c.CFUNCTYPE(c.c_uint32, c.c_void_p)(table[2])(blob)
    return data


# OpFNegate, OpFAdd, OpFSub, OpFMul, OpFDiv, OpFRem, OpFMod, OpVectorTimesScalar, OpDot
_FLOAT_OPS = {127, 129, 131, 133, 136, 140, 141, 142, 148}
_EXT_INST, _FMA, _DECORATE, _NO_CONTRACTION = 12, 50, 71, 42
_TYPES = range(19, 40)  # the first type ends the decorations
_DEBUG = {3, 5, 6, 7, 8, 317}  # sources, names, lines
_INT, _FLOAT, _VECTOR, _LOAD, _ALIGNED = 21, 22, 23, 61, 2


def exact(code: bytes) -> bytes:
    """Decorate all float operations with NoContraction, so that drivers do not fuse them, and remove names.

    Also align vector loads to the size of the vector, as `(uint4*)` implies. Slang only guarantees the alignment of one
    element, so drivers would load each separately.
    """
    words = list(struct.unpack(f"<{len(code) // 4}I", code))
    at, marked, place, out = 5, list[int](), None, list(words[:5])
    sizes = dict[int, int]()  # bytes of number and vector types
    while at < len(words):
        n, op = words[at] >> 16, words[at] & 0xFFFF
        if op in (_INT, _FLOAT):
            sizes[words[at + 1]] = words[at + 2] // 8
        elif op == _VECTOR:
            sizes[words[at + 1]] = sizes.get(words[at + 2], 0) * words[at + 3] if words[at + 3] != 3 else 0
        elif op == _LOAD and n == 6 and words[at + 4] == _ALIGNED and words[at + 1] in sizes:
            words[at + 5] = max(words[at + 5], sizes[words[at + 1]])
        if op in _FLOAT_OPS or (op == _EXT_INST and words[at + 4] == _FMA):
            marked.append(words[at + 2])
        if place is None and op in _TYPES:
            place = len(out)
        if op not in _DEBUG:
            out += words[at : at + n]
        at += n
    assert place is not None
    out[place:place] = [word for one in marked for word in (3 << 16 | _DECORATE, one, _NO_CONTRACTION)]
    return struct.pack(f"<{len(out)}I", *out)


_LOCAL_SIZE = 17


def n_threads(code: bytes) -> int:
    """Return the threads per group of a SPIR-V kernel, which has one axis."""
    words = struct.unpack(f"<{len(code) // 4}I", code)
    at = 5
    while words[at] & 0xFFFF != 16 or words[at + 2] != _LOCAL_SIZE:  # until the execution mode LocalSize
        at += words[at] >> 16
    x, y, z = words[at + 3 : at + 6]
    assert (y, z) == (1, 1), "a group has threads along one axis"
    return int(x)


def as_metal(text: bytes, threads: int) -> bytes:
    """Return Metal source with contraction disabled and the number of threads declared."""
    kernel = f"[[kernel, max_total_threads_per_threadgroup({threads})]]"
    return (_EXACT + text.decode().replace("[[kernel]]", kernel)).encode()


_Job = tuple[str, tuple[str, ...]]  # source and command-line options


@functools.cache
def _slang() -> Slang:
    """Return the compiler of this process."""
    return Slang()


def _compiled(job: tuple[_Job, bool]) -> tuple[bytes, bytes]:
    """Return SPIR-V, and the Metal source if requested."""
    (source, words), has_metal = job
    targets = ("spirv", "metal") if has_metal else ("spirv",)
    code, *texts = _slang().compile(HERE / f"{source}.slang", *words, targets=targets)
    return exact(code), b"".join(as_metal(text, n_threads(code)) for text in texts)


def _compile_all(jobs: list[tuple[_Job, bool]]) -> list[tuple[bytes, bytes]]:
    """Compile all jobs, with one process per core."""
    _slang()  # fails here if Slang cannot be opened, not in every process
    n = min(len(jobs), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    if n < 2:
        return [_compiled(job) for job in jobs]
    try:
        with ProcessPoolExecutor(n, mp_context=multiprocessing.get_context("spawn")) as pool:
            return list(pool.map(_compiled, jobs, chunksize=4))
    except BrokenProcessPool:  # multiprocessing.Pool would wait forever
        raise SystemExit(f"Slang crashed while it compiled kernels (slangpy {_slang_version()})") from None


def _kept(out: Path) -> dict[str, bytes]:
    """Return the kernels of the existing archive by the digest of their sources; {} if it is damaged."""
    data = out.read_bytes() if out.exists() else b""
    if not data.startswith(MARK):
        return {}
    found: dict[str, bytes] = {}
    try:
        start = 12 + int.from_bytes(data[8:12], "little")
        for one in json.loads(data[12:start])["variants"].values():
            opened = lzma.decompress(data[start + one["at"] : start + one["at"] + one["bytes"]])
            for at, n_bytes, *digest in one["kernels"].values():
                found |= dict.fromkeys(digest, opened[at : at + n_bytes])
    except (ValueError, LookupError, TypeError, AttributeError, lzma.LZMAError, EOFError):
        return {}
    return found


def build(out: Path) -> int:
    """Write the archive of all kernels, and return the number of compiled ones."""
    _slang_folder()  # checked before digests need the version
    codes, jobs, wanted = _kept(out), dict[_Job, dict[bool, str]](), dict[str, dict[str, str]]()
    for variant, options in VARIANTS.items():
        wanted[variant], is_metal = {}, variant == "metal"
        for name, source, defines in kernels(variant):
            job = source, (*(f"-D{one}" for one in defines), *options)
            wanted[variant][name] = digest = kernel_digest(source, (*job[1], *(("metal",) if is_metal else ())))
            jobs.setdefault(job, {})[is_metal] = digest
    missing = [(job, True in made) for job, made in jobs.items() if not codes.keys() >= set(made.values())]
    for (job, _), (code, text) in zip(missing, _compile_all(missing) if missing else (), strict=True):
        codes |= {digest: text if is_metal else code for is_metal, digest in jobs[job].items()}
    packs, index, at = list[bytes](), dict[str, Any](), 0
    for variants in PACKS:
        data = bytearray()
        for variant in variants:
            index[variant] = {"kernels": dict[str, tuple[int, int, str]]()}
            for name, digest in wanted[variant].items():
                index[variant]["kernels"][name] = (len(data), len(codes[digest]), digest)
                data += codes[digest]
            if variant != variants[-1]:
                index[variant] |= {"length": len(data), "check": zlib.crc32(data)}
        packed = lzma.compress(bytes(data), preset=9 | lzma.PRESET_EXTREME)
        for variant in variants:
            index[variant] |= {"at": at, "bytes": len(packed)}
        packs.append(packed)
        at += len(packed)
    weights = {
        name.lower(): {"words": one["words"], "head": one.get("head", 0)}
        for name, one in found("weights", "IWeight").items()
    }
    text = json.dumps({"sources": sources_digest(), "weights": weights, "variants": index}).encode()
    part = out.with_suffix(".part")
    part.write_bytes(MARK + len(text).to_bytes(4, "little") + text + b"".join(packs))
    part.replace(out)
    return len(missing)


def main() -> None:
    """Write the archive, and print where it is and its size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, default=OUT)
    parser.add_argument("--missing", action="store_true", help="only if the archive is not that of these sources")
    options = parser.parse_args()
    out: Path = options.out
    if options.missing and out.exists() and sources_digest().encode() in out.read_bytes()[:200]:
        return
    n = build(out)
    print(f"{out}: {out.stat().st_size / 1e6:.2f} MB, {n} kernels compiled", file=sys.stderr)


if __name__ == "__main__":
    main()
