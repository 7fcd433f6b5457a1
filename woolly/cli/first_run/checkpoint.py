"""Checkpoint folders used as models: detected, and converted once."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from woolly.cli.terminal.progress import bytes_bar, print_status
from woolly.errors import UnsupportedError
from woolly.store import models_folder

if TYPE_CHECKING:
    from woolly.convert import ConversionPlan, Written
    from woolly.quantize import ImportanceMatrix, Recipe


def convert_checkpoint(name: str) -> str:
    """Return the name of a model, or of the file to which a checkpoint folder was converted."""
    try:
        is_folder = Path(name).is_dir()
        if Path(name).is_file():  # otherwise it may be a prompt
            check_archive(name)
    except (OSError, ValueError):  # a prompt that is not a valid file name
        return name
    if not is_folder:
        return name  # without importing the converter, which would delay the first token of other models
    from woolly.convert import is_checkpoint

    return str(_converted(Path(name))) if is_checkpoint(Path(name)) else name


def _converted(folder: Path) -> Path:
    """Return the GGUF file of a checkpoint folder in the models folder. It is written and announced the first time."""
    from woolly.convert import choose_types, open_checkpoint, plan_conversion

    facts = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(folder.iterdir())]
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:12]
    target = models_folder() / "converted" / f"{folder.resolve().name}-{digest}.gguf"
    if not target.exists():
        print_status(f"woolly: {folder} is a checkpoint: it is converted once, to {target}")
        plan = plan_conversion(open_checkpoint(folder))
        target.parent.mkdir(parents=True, exist_ok=True)
        write_converted(plan, choose_types(plan, None), target, None)
    return target


def write_converted(
    plan: ConversionPlan, recipe: Recipe, target: Path, threads: int | None, imatrix: ImportanceMatrix | None = None
) -> Written:
    """Write the GGUF file of a checkpoint, with a progress bar."""
    from woolly.convert import write_draft
    from woolly.machine.cores import default_threads

    with bytes_bar(f"{plan.path.name} to {target.name}") as report:
        n = threads or default_threads()
        return write_draft(plan, recipe, target, threads=n, progress=report, imatrix=imatrix)


def check_archive(name: str) -> None:
    """Raise UnsupportedError for a NeMo archive, which is not a supported checkpoint."""
    if re.fullmatch(r"\S+\.nemo", name, re.IGNORECASE):
        raise UnsupportedError(
            f"{name}: NeMo archives are not supported; `woolly pull parakeet` downloads Parakeet, and `woolly convert`"
            " reads folders in transformers' format, such as nvidia/parakeet-ctc-1.1b"
        )
