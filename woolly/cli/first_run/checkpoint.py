"""A checkpoint's folder in place of a model: found, refused, or converted once."""

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
    """Returns the name of a model; of a checkpoint's folder, that of the file that it was converted to."""
    try:
        is_folder = Path(name).is_dir()
        if Path(name).is_file():  # else it may be a prompt
            check_archive(name)
    except (OSError, ValueError):  # a prompt that no file could be called
        return name
    if not is_folder:
        return name  # without the converter, whose import would delay the first token of every other model
    from woolly.convert import is_checkpoint

    return str(_converted(Path(name))) if is_checkpoint(Path(name)) else name


def _converted(folder: Path) -> Path:
    """Returns the GGUF file of a checkpoint's folder in the models folder; it is written once, and says so."""
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
    """Writes the GGUF file of a checkpoint, with a progress bar."""
    from woolly.convert import write_draft
    from woolly.machine.cores import default_threads

    with bytes_bar(f"{plan.path.name} to {target.name}") as report:
        n = threads or default_threads()
        return write_draft(plan, recipe, target, threads=n, progress=report, imatrix=imatrix)


def check_archive(name: str) -> None:
    """UnsupportedError for an archive of NeMo's, which is not a checkpoint that can be read."""
    if re.fullmatch(r"\S+\.nemo", name, re.IGNORECASE):
        raise UnsupportedError(
            f"{name}: NeMo archives are not read; `woolly pull parakeet` fetches Parakeet, and `woolly convert` reads"
            " folders of transformers' form, such as nvidia/parakeet-ctc-1.1b"
        )
