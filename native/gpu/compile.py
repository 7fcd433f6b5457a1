"""Compiles native/gpu by Slang into one archive of SPIR-V, woolly/runtime/vulkan/kernels.bin.

    pip install slangpy
    python native/gpu/compile.py [--missing] [OUT]

Slang is called through the C functions of the library in the package slangpy. The archive is the same on all systems.
"""

from __future__ import annotations

import argparse
import ctypes as c
import hashlib
import importlib.util
import json
import lzma
import re
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MARK = b"woollyv1"
OUT = HERE.parent.parent / "woolly" / "runtime" / "vulkan" / "kernels.bin"
VARIANTS = {"plain": (), "double": ("-DFMA_BY_DOUBLE",)}

FLOATS = {"f32": "32", "f16": "16", "bf16": "-16"}
ELEMENTS = (
    *("add", "scale", "mul", "gain", "shift", "columns", "join", "output_rows"),
    *("softcap", "act", "glu", "adapt", "rope"),
)


def found(folder: str, interface: str) -> dict[str, dict[str, int]]:
    """The structs of an interface in the sources of a folder, by name, with their constants that are numbers."""
    text = "\n".join(path.read_text() for path in sorted((HERE / folder).glob("*.slang")))
    structs = re.findall(rf"struct (\w+) : {interface} \{{\s*static const int ([^;]*);", text)
    return {name: {key: int(n) for key, n in re.findall(r"(\w+) = (\d+)", constants)} for name, constants in structs}


def kernels() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Name, source and definitions of every kernel."""
    yield "probe", "primitives/probe", ()
    yield "pack", "weights/pack", ()
    yield "rms_norm", "rows/norms", ()
    for block in ("32", "256"):
        yield f"quantize_{block}", "linears/quantize", (f"BLOCK={block}",)
    for struct_name in found("weights", "IWeight"):
        name, weight = struct_name.lower(), f"WEIGHT={struct_name}"
        yield f"embed_{name}", "weights/embed", (weight,)
        yield f"linear_one_{name}", "linears/few", (weight, "XROWS=1")
        yield f"linear_few_{name}", "linears/few", (weight, "XROWS=4")
        yield f"linear_many_{name}", "linears/many", (weight,)
    for name, bits in FLOATS.items():
        yield f"embed_{name}", "weights/embed", (f"FLOATS={bits}",)
        yield f"linear_{name}", "linears/floats", (f"FLOATS={bits}",)
    for name in ELEMENTS:
        yield name, "rows/elements", (f"OP={name.upper()}",)
    for struct_name in found("attention", "ICache"):
        name, cache = struct_name.lower(), f"KV={struct_name}"
        yield f"store_{name}", "attention/store", (cache,)
        for each in (1, 2, 5):
            for parts, what in enumerate(("attend", "attend_parts", "attend_merge")):
                defines = (cache, f"EACH={each}", f"PARTS={parts}")
                yield f"{what}_{name}_{128 * each}", "attention/attend", defines


def sources_digest() -> str:
    """The digest of all sources and of this file, which an archive carries."""
    digest = hashlib.sha256()
    for path in (Path(__file__), *sorted(HERE.rglob("*.slang"))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


class Slang:
    """The compiler, opened once."""

    def __init__(self) -> None:
        found = importlib.util.find_spec("slangpy")
        if found is None or not found.submodule_search_locations:
            raise SystemExit("Slang is not installed: pip install slangpy")
        place = Path(found.submodule_search_locations[0])
        names = [*place.glob("libslang-compiler.*"), *place.glob("slang-compiler.dll"), *place.glob("libslang.*")]
        self._library = c.CDLL(str(names[0]))
        p = c.c_void_p
        functions: tuple[tuple[Any, ...], ...] = (
            ("spCreateSession", p, c.c_char_p),
            ("spCreateCompileRequest", p, p),
            ("spProcessCommandLineArguments", c.c_int, p, c.POINTER(c.c_char_p), c.c_int),
            ("spCompile", c.c_int, p),
            ("spGetDiagnosticOutput", c.c_char_p, p),
            ("spGetEntryPointCode", p, p, c.c_int, c.POINTER(c.c_size_t)),
            ("spDestroyCompileRequest", None, p),
        )
        for name, result, *kinds in functions:
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, kinds
        self._session = p(self._library.spCreateSession(None))

    def compile(self, source: Path, *options: str, target: str = "spirv") -> bytes:
        """What the compiler makes of `main` in a source."""
        library = self._library
        request = c.c_void_p(library.spCreateCompileRequest(self._session))
        words = [str(source), "-target", target, "-entry", "main", "-stage", "compute", "-fp-mode", "precise"]
        # Not optimized here: the optimizer would take (x + a) - a for x before `exact` can forbid it. Drivers optimize.
        words += ["-O0", "-I", str(HERE), "-line-directive-mode", "none", *options, "-o", "-"]
        array = (c.c_char_p * len(words))(*(word.encode() for word in words))
        failed = library.spProcessCommandLineArguments(request, array, len(words)) < 0 or library.spCompile(request) < 0
        text, size = (library.spGetDiagnosticOutput(request) or b"").decode(), c.c_size_t()
        code = None if failed else library.spGetEntryPointCode(request, 0, c.byref(size))
        made = c.string_at(code, size.value) if code else b""
        library.spDestroyCompileRequest(request)
        if not made:
            raise RuntimeError(f"{source.name} {' '.join(options)}: {text or 'no output'}")
        return made


# OpFNegate, OpFAdd, OpFSub, OpFMul, OpFDiv, OpFRem, OpFMod, OpVectorTimesScalar, OpDot
_FLOAT_OPS = {127, 129, 131, 133, 136, 140, 141, 142, 148}
_EXT_INST, _FMA, _DECORATE, _NO_CONTRACTION = 12, 50, 71, 42
_TYPES = range(19, 40)  # the first of them ends the decorations
_DEBUG = {3, 5, 6, 7, 8, 317}  # sources, names, lines


def exact(code: bytes) -> bytes:
    """SPIR-V whose float operations no driver may fuse with others: each is decorated NoContraction. Without names."""
    words = struct.unpack(f"<{len(code) // 4}I", code)
    at, marked, place, out = 5, list[int](), None, list(words[:5])
    while at < len(words):
        n, op = words[at] >> 16, words[at] & 0xFFFF
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


def build(out: Path, wanted: str = "") -> None:
    """Writes the archive of all kernels, or of those whose names begin with `wanted`."""
    slang, packs, index, at = Slang(), list[bytes](), dict[str, Any](), 0
    for variant, options in VARIANTS.items():
        data, places = bytearray(), dict[str, tuple[int, int]]()
        for name, source, defines in kernels():
            if name.startswith(wanted):
                words = (*(f"-D{one}" for one in defines), *options)
                code = exact(slang.compile(HERE / f"{source}.slang", *words))
                places[name] = (len(data), len(code))
                data += code
        packed = lzma.compress(bytes(data), preset=9 | lzma.PRESET_EXTREME)
        index[variant] = {"at": at, "bytes": len(packed), "kernels": places}
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


def main() -> None:
    """Writes the archive; says where and how large it is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, default=OUT)
    parser.add_argument("--missing", action="store_true", help="only if the archive is not that of these sources")
    options = parser.parse_args()
    out: Path = options.out
    if options.missing and out.exists() and sources_digest().encode() in out.read_bytes()[:200]:
        return
    build(out)
    print(f"{out}: {out.stat().st_size / 1e6:.2f} MB", file=sys.stderr)


if __name__ == "__main__":
    main()
