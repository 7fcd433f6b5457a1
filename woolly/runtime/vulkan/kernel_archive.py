"""SpirvArchive: compiled kernels, written by native/gpu/compile.py.

File format: 8-byte magic, length of the index, JSON index, xz-compressed packs. The index has the digest of the
sources, the packed layout of each weight type, and the kernel variants. A variant has the offset and length of its pack
and, for each kernel, its range in the decompressed pack and the digest of its source. Variants may share a pack. The
first variant then has the length and checksum of its prefix. Variant "plain" uses the driver's FMA, "double" emulates
FMA in f64.
"""

from __future__ import annotations

import functools
import hashlib
import json
import zlib
from dataclasses import dataclass
from pathlib import Path

from woolly import _native
from woolly.errors import DeviceError

# Next to this file or, in an editable install, next to the native module.
_PLACES = (Path(__file__).parent, Path(_native.__file__).parent / "runtime" / "vulkan")
ARCHIVE = next((found for place in _PLACES if (found := place / "kernels.bin").exists()), _PLACES[0] / "kernels.bin")
_MARK = b"woollyv1"
# Sources of a checkout, to detect an outdated archive.
_SOURCES = Path(__file__).resolve().parents[3] / "native" / "gpu"
_MAKE = (
    "in the clone `pip install slangpy` and `python native/gpu/compile.py` make them, and `pip install .` takes them"
    " along, unless it was editable; or use backend='cpu'"
)


@dataclass(frozen=True)
class PackedForm:
    """Packed layout of a weight block, as defined by its struct in native/gpu/weights."""

    words: int  # 32-bit words per block
    head: int  # leading bytes of the file's block that are moved to the end


class SpirvArchive:
    """Compiled kernels by variant and name."""

    def __init__(self, path: Path = ARCHIVE) -> None:
        self.path = path
        if not path.exists():
            raise DeviceError(f"this build of Woolly has no Vulkan kernels: {_MAKE}", code="no_kernels")
        data = path.read_bytes()
        try:
            start = 12 + int.from_bytes(data[8:12], "little")
            if data[:8] != _MARK or len(data) < start:
                raise ValueError
            index = json.loads(data[12:start])
            self.sources = str(index["sources"])
            self.weights = {name: PackedForm(one["words"], one["head"]) for name, one in index["weights"].items()}
            self._packs = {
                variant: (data[start + one["at"] : start + one["at"] + one["bytes"]], one["kernels"])
                for variant, one in index["variants"].items()
            }
            self._ends = {
                variant: (int(one["length"]), int(one["check"]))
                for variant, one in index["variants"].items()
                if "length" in one
            }
            for name, (packed, kernels) in self._packs.items():
                if len(packed) != index["variants"][name]["bytes"] or not isinstance(kernels, dict):
                    raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            raise DeviceError(f"{path} is damaged: install Woolly again", code="no_kernels") from None
        if _sources_digest(_SOURCES) not in ("", self.sources):
            raise DeviceError(f"{path} has Vulkan kernels of other sources than {_SOURCES}: {_MAKE}", code="no_kernels")
        self.digest = hashlib.sha256(data).hexdigest()

    def names(self, variant: str = "plain") -> list[str]:
        """Return the kernel names of a variant."""
        return sorted(self._packs[variant][1])

    def kernel(self, variant: str, name: str) -> bytes:
        """Return the SPIR-V of a kernel. Raises DeviceError for an unknown name."""
        packed, places = self._packs.get(variant, (b"", {}))
        if name not in places:
            raise DeviceError(f"this build of Woolly has no kernel {name}: install it again", code="no_kernels")
        try:
            at, n_bytes = places[name][:2]
            code = _opened(packed, self._ends.get(variant))[at : at + n_bytes]
            if at < 0 or not len(code) == n_bytes > 0:
                raise ValueError
        except (ValueError, TypeError, EOFError, OverflowError) as error:
            damaged = DeviceError(f"{self.path} is damaged: install Woolly again", code="no_kernels")
            raise damaged from error
        return code


def open_archive() -> SpirvArchive:
    """Return the archive of this build, cached until the file changes."""
    found = ARCHIVE.stat() if ARCHIVE.exists() else None
    return _read(ARCHIVE, found and (found.st_mtime_ns, found.st_size))


@functools.lru_cache(maxsize=1)
def _read(path: Path, version: tuple[int, int] | None) -> SpirvArchive:
    return SpirvArchive(path)


@functools.cache
def _sources_digest(folder: Path) -> str:
    """Return the digest of the kernel sources as in native/gpu/compile.py; empty if there are no sources."""
    script = folder / "compile.py"
    if not script.exists():
        return ""
    digest = hashlib.sha256()
    for path in (script, *sorted(folder.rglob("*.slang"))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


@functools.lru_cache(maxsize=4)
def _opened(packed: bytes, end: tuple[int, int] | None) -> bytes:
    """Decompress a pack, or only its prefix if `end` has a length and a CRC-32."""
    import lzma  # missing in some Python builds

    try:
        if end is None:
            return lzma.decompress(packed)
        found = lzma.LZMADecompressor().decompress(packed, end[0])
        if zlib.crc32(found) != end[1]:
            raise ValueError("the checksum is wrong")
        return found
    except lzma.LZMAError as error:
        raise ValueError(str(error)) from None
