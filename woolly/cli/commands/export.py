"""`woolly export`: merges adapters into a model's weights."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from woolly.cli.parse.command import command
from woolly.cli.parse.options import THREADS
from woolly.cli.parse.parameter import Argument, Option
from woolly.cli.parse.usage_errors import UsageError
from woolly.cli.terminal.human_readable import format_size, plural
from woolly.cli.terminal.screen import stdout_console
from woolly.errors import RequestError
from woolly.store import resolve


@command(
    Argument("model", "MODEL", "A GGUF file or a model's name.", required=True),
    Argument("target", "OUT", "The file to write.", Path, required=True),
    Option("--lora", "GGUF adapter to merge; may be repeated.", list, metavar="FILE"),
    Option("--lora-scaled", "GGUF adapter with its scale; may be repeated.", list, metavar="FILE:SCALE"),
    THREADS,
    Option("--force -f", "Overwrite an existing file.", bool, default=False),
)
def export(
    model: str,
    target: Path,
    lora: tuple[str, ...],
    lora_scaled: tuple[str, ...],
    threads: int | None,
    force: bool,
) -> None:
    """Write a model with merged adapters, for instance: woolly export model.gguf out.gguf --lora french.gguf.

    Changed tensors keep their type. To quantize only once, export an F16 or BF16 model and quantize the result.
    """
    from woolly.convert.lora import merge_lora
    from woolly.engine.loading.adapters import scaled_file
    from woolly.gguf import open_gguf
    from woolly.machine.cores import default_threads

    if threads is not None and not 1 <= threads <= 1024:
        raise UsageError(f"--threads is {threads}; expected 1 to 1024")
    wanted = [(path, 1.0) for path in lora] + [scaled_file(text) for text in lora_scaled]
    if not wanted:
        raise UsageError("nothing to merge; add --lora FILE")
    if target.is_dir():
        raise RequestError(f"{target} is a folder; expected the name of a file")
    if target.exists() and not force:
        raise RequestError(f"{target} already exists; choose another name, or add --force to overwrite it")
    with ExitStack() as open_files:
        file = open_files.enter_context(open_gguf(resolve(model)))
        if target.exists() and any(target.samefile(path) for path in file.paths):
            raise RequestError(f"{target} is the source file; choose another name for the output")
        adapters = [(open_files.enter_context(open_gguf(resolve(path))), scale) for path, scale in wanted]
        n = merge_lora(file, adapters, target, threads=threads or default_threads())
    stdout_console().print(
        f"{target}  {format_size(target.stat().st_size)}, {plural(n, 'tensor')} changed by"
        f" {plural(len(wanted), 'adapter')}",
        soft_wrap=True,
    )
