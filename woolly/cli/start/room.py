"""room_here: the memory and the disk of this machine that a model could take."""

from __future__ import annotations

import shutil
from pathlib import Path

from woolly.errors import StoreError
from woolly.machine.fit import Room
from woolly.machine.memory import available_memory, total_memory
from woolly.store import models_folder


def room_here() -> Room:
    """Returns the room of this machine; the memory of the GPU that `auto` takes counts, for a model may be split."""
    from woolly.cli.commands.show_gpu import find_card

    card, _ = find_card()
    beside = 0 if card is None else card.usable
    return Room(available_memory() + beside, total_memory() + beside, _free_disk())


def _free_disk() -> int:
    """Returns the free bytes of the disk that models are kept on; the folder itself need not exist."""
    try:
        folder = models_folder()
        existing = next((path for path in (folder, *folder.parents) if path.is_dir()), Path("/"))
        return shutil.disk_usage(existing).free
    except (OSError, StoreError):
        return 0
