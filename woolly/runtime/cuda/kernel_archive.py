"""Archive of precompiled CUDA kernels for all GPU architectures, written by native/cuda/compile.py.

File layout: 8-byte magic, index length, JSON index, xz-compressed packs of images. For each target ("sm_90a",
"compute_80"), the index lists the packs: offset, length, and the length and kernel names of every image. A pack groups
similar images (one source for all tile kinds; all of attention), so the file is 11 MB, a quarter smaller than with
separate compression. Opening an image decompresses its pack: a few hundredths of a second, a tenth for attention.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable
from pathlib import Path

from woolly import _native
from woolly.errors import DeviceError

# Next to this file or, in an editable install, next to the native module.
_PLACES = (Path(__file__).parent, Path(_native.__file__).parent / "runtime" / "cuda")
ARCHIVE = next((found for place in _PLACES if (found := place / "kernels.bin").exists()), _PLACES[0] / "kernels.bin")
_MARK = b"woollyk2"
# First driver version (cuDriverGetVersion) that accepts PTX of NVRTC 12.9.
COMPILES_PTX = 12_090


class KernelImage:
    """Kernels of one source file, or of one tile kind of it, for one target."""

    def __init__(self, packed: bytes, start: int, end: int, kernels: list[str]) -> None:
        self._packed = packed
        self._start, self._end = start, end  # in the decompressed pack
        self.kernels = kernels

    def data(self) -> bytes:
        """Image for cuModuleLoadData: a cubin, or zero-terminated PTX."""
        return _opened(self._packed)[self._start : self._end]


@functools.lru_cache(maxsize=4)  # loading a model alternates between several packs
def _opened(packed: bytes) -> bytes:
    import lzma  # missing in some Python builds

    return lzma.decompress(packed)


def _images(packed: bytes, entries: list[tuple[int, list[str]]]) -> list[KernelImage]:
    """Return the images of a pack."""
    ends = list(itertools.accumulate(length for length, _ in entries))
    return [
        KernelImage(packed, end - length, end, kernels) for end, (length, kernels) in zip(ends, entries, strict=True)
    ]


class Archive:
    """Images by target."""

    def __init__(self, path: Path = ARCHIVE) -> None:
        if not path.exists():
            raise DeviceError(
                "this build of Woolly has no CUDA kernels, nor their sources; install a wheel for Linux or Windows,"
                " or `pip install .` in a clone on Linux; or use backend='cpu'",
                code="no_kernels",
            )
        data = path.read_bytes()
        try:
            start = 12 + int.from_bytes(data[8:12], "little")
            if data[:8] != _MARK or len(data) < start:
                raise ValueError
            index = json.loads(data[12:start])
            if len(data) < start + sum(one["bytes"] for packs in index.values() for one in packs):
                raise ValueError
            self._images = {
                target: [
                    image
                    for one in packs
                    for image in _images(data[start + one["at"] : start + one["at"] + one["bytes"]], one["images"])
                ]
                for target, packs in index.items()
            }
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DeviceError(f"{path} is damaged: install Woolly again", code="damaged_kernels") from None

    @property
    def targets(self) -> list[str]:
        """Targets with images, sorted."""
        return sorted(self._images)

    def target(self, architecture: int, version: int = COMPILES_PTX) -> str:
        """Return the best target for an architecture and driver version. Raises DeviceError if there is none.

        Order: the exact target, an earlier one of the same family, then PTX, which the driver compiles.
        """
        family, exact = architecture // 10, (f"sm_{architecture}a", f"sm_{architecture}")
        found = [target for target in exact if target in self._images]
        # A cubin runs on later chips of its family, unless its name ends in a letter.
        older = [
            target
            for target in self._images
            if target.startswith("sm_") and target[3:].isdigit() and int(target[3:]) // 10 == family
            if int(target[3:]) <= architecture
        ]
        found += sorted(older, key=lambda target: int(target[3:]), reverse=True)
        found += [
            t for t in self._images if t.startswith("compute_") and int(t.removeprefix("compute_")) <= architecture
        ]
        if not found:
            raise DeviceError(
                f"this build of Woolly has no CUDA kernels for a GPU of sm_{architecture}, only for:"
                f" {', '.join(self.targets)}; build it with WOOLLY_CUDA_TARGETS=all, or use backend='cpu'",
                code="no_kernels",
            )
        if found[0].startswith("compute_") and version < COMPILES_PTX:
            raise DeviceError(
                "the kernels of this build are PTX, which needs driver 575 or later; build it with"
                " WOOLLY_CUDA_TARGETS=all, or use backend='cpu'",
                code="old_driver",
            )
        return found[0]

    def images(self, target: str) -> list[KernelImage]:
        """Return the images of a target."""
        return self._images[target]

    def kernels_of(self, target: str) -> ArchiveKernels:
        """Return the kernels of a target."""
        return ArchiveKernels(self._images[target])


class ArchiveKernels:
    """Precompiled kernels of one target."""

    def __init__(self, images: Iterable[KernelImage]) -> None:
        self._of = {kernel: image for image in images for kernel in image.kernels}

    def find(self, kernel: str) -> KernelImage | None:
        """Return the image of a kernel, or None."""
        return self._of.get(kernel)

    def precompile(self, kernels: Iterable[str]) -> None:
        """Do nothing, because all kernels are precompiled."""
