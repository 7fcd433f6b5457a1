"""Disk cache of a model: the folder with its KV pages."""

from __future__ import annotations

import hashlib
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from woolly.engine import Engine, LoadedModel
from woolly.errors import RequestError
from woolly.llm.bit_identity import BitIdentityMixin, Identity, compute_rate, identity_of
from woolly.runtime import PortableState, Program, parse_size
from woolly.store import models_folder

if TYPE_CHECKING:
    from woolly.cache.disk_tier import DiskStats, DiskTier
    from woolly.cache.page_folder import PageFolder


@dataclass(frozen=True)
class DiskCache:
    """Disk folder for KV pages of one identity, and the prefill rate of the model."""

    identity: Identity
    folder: PageFolder
    compute_rate: float


class DiskCacheMixin(BitIdentityMixin):
    """Disk cache methods of LLM."""

    _tier: DiskTier | None = None

    def disk_stats(self) -> DiskStats | None:
        """Return the counters of the disk tier; None without `cache_disk`."""
        return self.driver.call(Engine.disk_stats)

    @property
    def known_disk_stats(self) -> DiskStats | None:
        """Return the counters without waiting for the current step; they may be inconsistent with each other."""
        return None if self._tier is None else self._tier.stats()

    def _use_disk(self, disk: DiskCache | None, engine: Engine) -> None:
        if disk is None:
            return
        self._identity = disk.identity
        self._tier = engine.scheduler.tier
        if not engine.has_disk:
            warnings.warn(
                "cache_disk is ignored: the cache of this backend cannot be copied",
                stacklevel=3,
            )


def pages_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder for pages of all models: the given folder or `$WOOLLY_HOME/pages`."""
    return models_folder().parent / "pages" if folder is None else Path(folder)


def pages_name(program: Program, identity: Identity) -> str:
    """Return the folder name for pages of an identity and a page layout.

    Pages of plans with more layers are larger. GPUs have a different page layout than the CPU even if their bits are
    equal, and the layout also depends on the distribution of layers across devices. With sliding windows, pages consist
    of several files, whose sizes are included in the digest.
    """
    state, about, name = program.new_state(1, 1 if program.plan.slots else 0), program.about, identity.id
    layout = []
    if about.arithmetic:
        divided = [f"{share.device.partition(':')[0]} {share.n_layers}" for share in about.shares]
        layout = divided or [about.backend]
    if program.plan.windows and isinstance(state, PortableState):
        layout.append(f"windows {list(zip(program.plan.windows, state.page_sizes[1:], strict=True))}")
    if layout:
        digest = hashlib.blake2b(f"{name} {' '.join(layout)}".encode(), digest_size=12).hexdigest()
        name = f"w{identity.arithmetic}-{digest}"
    return f"{name}-{state.page_bytes}-{state.slot_bytes}"


def open_disk(
    loaded: LoadedModel, size: int | str | None, folder: str | os.PathLike[str] | None = None
) -> DiskCache | None:
    """Return the disk cache of a model, or None without a size. No run may use the program during this call."""
    most = parse_size("cache_disk", size)
    if not most:
        return None
    from woolly.cache.page_folder import PageFolder  # rarely used

    place = pages_folder(folder)
    identity = identity_of(loaded.program, loaded.file, [adapter.file for adapter in loaded.adapters])
    rate = compute_rate(loaded.program)
    try:
        return DiskCache(identity, PageFolder(place, pages_name(loaded.program, identity), most), rate)
    except OSError as error:
        raise RequestError(
            f"cache_disk: cannot use {error.filename or place} ({error.strerror})", field="cache_disk"
        ) from None
