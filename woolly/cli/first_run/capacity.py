"""Memory and disk space of this machine for models."""

from __future__ import annotations

import shutil
from pathlib import Path

from woolly.errors import StoreError
from woolly.machine.capacity import Capacity
from woolly.machine.memory import available_memory, total_memory
from woolly.store import models_folder


def machine_capacity() -> Capacity:
    """Return the capacity of this machine, including the memory of the GPU that `auto` selects."""
    from woolly.cli.commands.show_gpu import detect_gpu

    card, _ = detect_gpu()
    beside = 0 if card is None else card.usable
    return Capacity(available_memory() + beside, total_memory() + beside, _free_disk())


def _free_disk() -> int:
    """Return the free bytes of the disk with the models folder, which may not exist yet."""
    try:
        folder = models_folder()
        existing = next((path for path in (folder, *folder.parents) if path.is_dir()), Path("/"))
        return shutil.disk_usage(existing).free
    except (OSError, StoreError):
        return 0
