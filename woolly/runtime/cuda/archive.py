"""The Archive: compiled kernels of all generations of GPUs, as native/cuda/compile.py writes them.

A file of an eight-byte mark, the length of an index, the index as JSON and packs of images, each packed by xz. The
index has for each target ("sm_90a", "compute_80") its packs: place, length, and of each image the length and the names
of its kernels. Images of a pack are much alike: those of one source for all kinds of tiles, and those of attention. So
they take 11 MB, a quarter less than each by itself, and a kind is opened with all others of its source, in a few
hundredths of a second; attention takes a tenth.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable
from pathlib import Path

from woolly import _native
from woolly.errors import DeviceError

# Beside this file, or, if Woolly is installed editable, beside the native module.
_PLACES = (Path(__file__).parent, Path(_native.__file__).parent / "runtime" / "cuda")
ARCHIVE = next((found for place in _PLACES if (found := place / "kernels.bin").exists()), _PLACES[0] / "kernels.bin")
_MARK = b"woollyk2"
# The first driver that takes PTX of NVRTC 12.9, as cuDriverGetVersion counts.
COMPILES_PTX = 12_090


class KernelImage:
    """Kernels of one source file, or of one kind of tiles in it, for one target."""

    def __init__(self, packed: bytes, start: int, end: int, kernels: list[str]) -> None:
        self._packed = packed
        self._start, self._end = start, end  # in what is packed
        self.kernels = kernels

    def data(self) -> bytes:
        """What the driver loads: a cubin, or PTX that ends in a zero."""
        return _opened(self._packed)[self._start : self._end]


@functools.lru_cache(maxsize=4)  # a model takes images of several packs in turn
def _opened(packed: bytes) -> bytes:
    import lzma  # not every Python has it

    return lzma.decompress(packed)


def _images(packed: bytes, held: list[tuple[int, list[str]]]) -> list[KernelImage]:
    """The images of a pack."""
    ends = list(itertools.accumulate(length for length, _ in held))
    return [KernelImage(packed, end - length, end, kernels) for end, (length, kernels) in zip(ends, held, strict=True)]


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
        """What there are images for."""
        return sorted(self._images)

    def target(self, architecture: int, version: int = COMPILES_PTX) -> str:
        """The best target for a generation, given the driver's version; DeviceError if there is none.

        Its own, else an earlier one of the same family, else PTX, which the driver compiles.
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
        """The images of a target."""
        return self._images[target]

    def kernels_of(self, target: str) -> ArchiveKernels:
        """The kernels of a target."""
        return ArchiveKernels(self._images[target])


class ArchiveKernels:
    """Kernels of one target. All are there: nothing is compiled."""

    def __init__(self, images: Iterable[KernelImage]) -> None:
        self._of = {kernel: image for image in images for kernel in image.kernels}

    def find(self, kernel: str) -> KernelImage | None:
        """The image of a kernel; None if there is none."""
        return self._of.get(kernel)

    def precompile(self, kernels: Iterable[str]) -> None:
        """Does nothing."""
