"""Opens the folder in which the cache of a model keeps pages on disk."""

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
        """Return the counters of the cache's disk tier; None without `cache_disk`."""
        return self.driver.call(Engine.disk_stats)

    @property
    def known_disk_stats(self) -> DiskStats | None:
        """Return the counts without waiting for the step under way; they may be of different moments."""
        return None if self._tier is None else self._tier.stats()

    def _use_disk(self, disk: DiskCache | None, engine: Engine) -> None:
        if disk is None:
            return
        self._identity = disk.identity
        self._tier = engine.scheduler.tier
        if not engine.has_disk:
            warnings.warn(
                "cache_disk is not used: the backend's cache cannot be copied",
                stacklevel=3,
            )


def pages_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of pages of all models: the given one, or `$WOOLLY_HOME/pages`."""
    return models_folder().parent / "pages" if folder is None else Path(folder)


def pages_name(program: Program, identity: Identity) -> str:
    """Return the folder's name for pages of an identity: plans with further layers have larger pages.

    GPUs that share the CPU's bits lay their pages out in another way, and so does each division of the layers. Pages
    of a model with windows are several files, of whatever context: their sizes are a part of the digest.
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
    """Return the folder for pages of a model, None without a size. No run may use the program meanwhile."""
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
            f"cache_disk: {error.filename or place} cannot be used ({error.strerror})", field="cache_disk"
        ) from None
