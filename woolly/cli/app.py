"""The whole command line: collects the commands, turns errors into one line and an exit code."""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import warnings
from contextlib import suppress
from importlib import import_module
from typing import Any

import click

from woolly import __version__
from woolly.cli.parse.command import Group
from woolly.cli.parse.usage_errors import UsageError
from woolly.cli.terminal.ascii_fallback import PLAIN
from woolly.cli.terminal.progress import print_status
from woolly.errors import WoollyError

# Title of each group of --help by its first command.
_GROUPS = {"run": "Start here", "launch": "More with models", "why": "Look inside", "cluster": "Many machines"}

# The files of cli/commands that declare a command, and their lines in --help, which then imports none of them.
COMMANDS = {
    "run": "Answer one prompt.",
    "chat": "Talk with a model.",
    "serve": "Answer over HTTP, as OpenAI's API does.",
    "pull": "Fetch a model.",
    "list": "List the models on this machine.",
    "show": "Show what is in a model, and whether it fits this machine.",
    "transcribe": "Transcribe audio files.",
    "launch": "Start a coding agent with a model of this machine.",
    "batch": "Answer a file of requests.",
    "embed": "Compute embeddings of texts.",
    "rerank": "Rank documents by a query.",
    "ps": "Ask a running server what it holds.",
    "stop": "Ask a running server to unload models.",
    "rm": "Remove models that were pulled.",
    "cache": "List, check or remove pages of prompts on disk.",
    "keys": "Add, list or remove named keys of a server.",
    "usage": "Show what each key has used.",
    "convert": "Write a checkpoint of the hub as a GGUF file.",
    "quantize": "Write a model with fewer bits.",
    "imatrix": "Find which columns of weights a text uses most.",
    "export": "Write a model with LoRA adapters merged into it.",
    "why": "Show where the time goes, and what would help.",
    "bench": "Measure how fast a model runs.",
    "perplexity": "Measure how well a model predicts a text.",
    "eval": "Measure how often a model answers right.",
    "plan": "Show the steps that compute a model.",
    "tokenize": "Turn text into tokens, and back.",
    "cluster": "Check replicas, or hold one for another machine.",
    "stage": "Hold a part of a model that is larger than one machine.",
}


def _switch(name: str, help: str, does: Any) -> click.Option:
    """An option that does something and ends the program."""

    def call(context: click.Context, _: click.Parameter, is_given: bool) -> None:
        if is_given and not context.resilient_parsing:
            does()
            context.exit()

    return click.Option([name], is_flag=True, is_eager=True, expose_value=False, help=help, callback=call)


def _completion(name: str) -> None:
    """Calls a function of the file about completion, which few starts need."""
    getattr(import_module("woolly.cli.parse.completion"), name)()


app = Group(
    COMMANDS,
    _GROUPS,
    "woolly.cli.commands",
    'Run GGUF language models on this machine, for instance: woolly run "Why is the sky blue?".',
    [
        _switch("--version", "Print the version and exit.", lambda: click.echo(f"woolly {__version__}")),
        _switch(
            "--install-completion",
            "Install completion for the current shell.",
            lambda: _completion("install_completion"),
        ),
        _switch(
            "--show-completion",
            "Print the completion script of the current shell.",
            lambda: _completion("show_completion"),
        ),
    ],
)


def _out_of_memory(error: MemoryError) -> str:
    """The sentence for memory that the system refused: what was asked for, if NumPy says it, and what is left."""
    from woolly.cli.terminal.human_readable import format_size
    from woolly.machine.memory import available_memory

    asked = str(error) if "allocate" in str(error) else "the system refused memory"
    return (
        f"{asked}; {format_size(available_memory())} are available:"
        " a smaller --ctx, a smaller model or a higher limit (ulimit -v) would do"
    )


def main() -> None:
    """Entry point: 0 for success, 2 for a mistake on the command line, 1 for other errors, 130 for Ctrl-C."""
    # What 500 modules define stays, 80,000 objects with those of a model: to look for garbage after each 700 is a tenth
    # of the time of a start, and to look once, after 50,000, is 30 ms of it.
    gc.set_threshold(100_000)
    if hasattr(signal, "SIGPIPE") and sys.argv[1:2] != ["pull"]:
        # The reader of the output may go away (`woolly plan ... | head`): end as other tools do, without a message.
        # Not for a download, which sees the other end of its connection go away; the server handles that itself.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115  (started with standard output closed)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the terminal cannot show is written as ' or \\u4f60: no answer ends in a traceback.
            with suppress(OSError):  # another file took the place of the one that the stream was opened for
                stream.reconfigure(errors=PLAIN)
            if sys.platform == "win32":
                # Pipes and files get UTF-8 as on other systems: the code page of the country lacks most characters.
                stream.reconfigure(encoding="utf-8")
    warnings.showwarning = lambda message, *_, **__: print_status(f"woolly: warning: {message}")
    try:
        app()
    except WoollyError as error:
        print_status(f"woolly: error: {error}")
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
    except MemoryError as error:
        print_status(f"woolly: error: {_out_of_memory(error)}")
        sys.exit(1)
    except OSError as error:
        # Standard output is full or closed; the files that a person names have errors of their own.
        print_status(f"woolly: error: {error.strerror or error}")
        sys.exit(1)
    finally:
        # The process ends: Python would look for garbage among all that it has imported, which takes up to 80 ms.
        gc.freeze()
