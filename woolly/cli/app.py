"""The typer app: collects the commands, turns errors into one line and an exit code."""

from __future__ import annotations

import io
import os
import signal
import sys

import typer

from woolly import __version__
from woolly.cli.bench import bench
from woolly.cli.chat import chat
from woolly.cli.list import list_command, rm
from woolly.cli.perplexity import perplexity
from woolly.cli.plan import plan
from woolly.cli.ps import ps
from woolly.cli.pull import pull
from woolly.cli.quantize import quantize
from woolly.cli.run import run
from woolly.cli.serve import serve
from woolly.cli.show import show
from woolly.cli.tokenize import tokenize
from woolly.cli.usage import Boxed, Command, Group, UsageError
from woolly.cli.why import why
from woolly.errors import WoollyError

__all__ = ["app", "main"]

app = typer.Typer(
    name="woolly",
    cls=Group,
    help='Run GGUF language models on this machine, for instance: woolly run "Why is the sky blue?".',
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(cls=Command, short_help="Answer one prompt.")(run)
app.command(cls=Command, short_help="Talk with a model.")(chat)
app.command(cls=Boxed, short_help="Answer over HTTP, as OpenAI's API does.")(serve)
app.command(cls=Command, short_help="Bring a model here.")(pull)
app.command("list", cls=Command, short_help="The models on this machine.")(list_command)
app.command(cls=Command, short_help="Remove models that were pulled.")(rm)
app.command(cls=Command, short_help="Ask a running server what it holds.")(ps)
app.command(cls=Command, short_help="What is in a model, and whether it fits here.")(show)
app.command(cls=Command, short_help="The steps that a model is computed by.")(plan)
app.command(cls=Command, short_help="Text to tokens, and back.")(tokenize)
app.command(cls=Command, short_help="How well a model foretells a text.")(perplexity)
app.command(cls=Command, short_help="Write a model with fewer bits.")(quantize)
app.command(cls=Command, short_help="How fast a model runs here.")(bench)
app.command(cls=Command, short_help="Where the time goes, and what would help.")(why)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"woolly {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
    ),
) -> None:
    pass


def main() -> None:
    """Entry point: 0 for success, 2 for what was typed wrongly, 1 for other errors, 130 for Ctrl-C."""
    if hasattr(signal, "SIGPIPE") and sys.argv[1:2] != ["pull"]:
        # The reader of our output may go away (`woolly plan ... | head`): end as other tools do, without a word. Not
        # where the one that goes away may be the other end of a download; the server sees to that itself.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115  (started with standard output closed)
    if sys.platform == "win32":
        # Pipes and files get UTF-8 as elsewhere, and not the code page of the country, which lacks most characters.
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(encoding="utf-8")
    try:
        app()
    except WoollyError as error:
        typer.echo(f"woolly: error: {error}", err=True)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        # Standard output is full or gone; files of the user's have errors of their own.
        typer.echo(f"woolly: error: {error.strerror or error}", err=True)
        sys.exit(1)
