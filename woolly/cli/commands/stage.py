"""`woolly stage`: runs some layers of a model for an engine on another machine."""

from __future__ import annotations

import signal
from pathlib import Path

import click

from woolly.cli.parse.command import command
from woolly.cli.parse.options import DEVICE, MODEL, NAMED, THREADS, WEIGHT_MEMORY, one_model
from woolly.cli.parse.parameter import Option
from woolly.cli.parse.usage_errors import UsageError
from woolly.cli.terminal.progress import print_status


@command(
    MODEL,
    NAMED,
    Option("--listen", "Address to listen at; port 0: any free port.", default="127.0.0.1:7070", metavar="HOST:PORT"),
    Option("--token-file", "File with the token that the engine must present.", Path, to="stage_token_file"),
    THREADS,
    WEIGHT_MEMORY,
    DEVICE,
)
def stage(
    model: str | None,
    named: str | None,
    listen: str,
    stage_token_file: Path | None,
    threads: int | None,
    weight_memory: str | None,
    device: str | None,
) -> None:
    """Run a part of a model that is larger than one machine, for `woolly serve --stages`.

    The engine assigns the layers by the memory of each stage. All stages need the same file and token. Traffic is
    authenticated, but not encrypted: use a private network.
    """
    from woolly.cluster.stage import Stage
    from woolly.runtime.stage_addresses import parse_address, read_token

    name = one_model("stage", model, named)
    if stage_token_file is None:
        raise UsageError("missing token: woolly stage MODEL --token-file FILE, a file with at least 16 characters")
    host, port = parse_address("listen", listen)
    part = Stage(
        name,
        read_token(stage_token_file),
        host=host,
        port=port,
        threads=threads,
        weight_memory=weight_memory,
        device=device,
        report=lambda line: print_status(f"stage: {line}"),
    )

    def leave(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)  # a second signal ends the process immediately
        raise SystemExit(0)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        host, port = part.address
        click.echo(f"a stage of {part.file.path.name} listens at {f'[{host}]' if ':' in host else host}:{port}")
        part.serve()
    finally:
        part.close()
        signal.signal(signal.SIGTERM, before)
