"""A checkpoint's folder in place of a model: found, refused, or converted once."""

from __future__ import annotations

import re
from pathlib import Path

from woolly.errors import UnsupportedError


def convert_checkpoint(name: str) -> str:
    """Returns the name of a model; of a checkpoint's folder, that of the file that it was converted to."""
    try:
        is_folder = Path(name).is_dir()
        if Path(name).is_file():  # else it may be a prompt
            check_archive(name)
    except (OSError, ValueError):  # a prompt that no file could be called
        return name
    if not is_folder:
        return name  # without the converter, whose import would delay the first token of every other model
    from woolly.cli.commands.convert import converted
    from woolly.convert import is_checkpoint

    return str(converted(Path(name))) if is_checkpoint(Path(name)) else name


def check_archive(name: str) -> None:
    """UnsupportedError for an archive of NeMo's, which is not a checkpoint that can be read."""
    if re.fullmatch(r"\S+\.nemo", name, re.IGNORECASE):
        raise UnsupportedError(
            f"{name}: NeMo archives are not read; `woolly pull parakeet` fetches Parakeet, and `woolly convert` reads"
            " folders of transformers' form, such as nvidia/parakeet-ctc-1.1b"
        )
