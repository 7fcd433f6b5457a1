"""Main entry point: collects the commands, and turns errors into one line and an exit code."""

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

# Titles of the groups in --help, by their first command.
_GROUPS = {
    "run": "Start here",
    "launch": "More with models",
    "why": "Measure and inspect",
    "cluster": "Several machines",
}

# The files of cli/commands that declare a command, and their lines in --help, which then imports none of them.
COMMANDS = {
    "run": "Answer one prompt.",
    "chat": "Chat with a model.",
    "serve": "Start a server with OpenAI's API and others.",
    "pull": "Download a model.",
    "list": "List the models on this machine.",
    "show": "Show information about a model and its memory requirements.",
    "transcribe": "Transcribe audio files.",
    "launch": "Start a coding agent with a local model.",
    "batch": "Answer a file of requests.",
    "embed": "Compute embeddings of texts.",
    "rerank": "Sort documents by relevance to a query.",
    "ps": "Show the loaded models of a running server.",
    "stop": "Unload models of a running server.",
    "rm": "Remove pulled models.",
    "create": "Create a model name from a Modelfile.",
    "cp": "Give a model another name.",
    "cache": "List, check or remove cached prompts on disk.",
    "keys": "Add, list or remove API keys of a server.",
    "usage": "Show the usage of each API key.",
    "convert": "Convert a checkpoint to a GGUF file.",
    "quantize": "Quantize a model.",
    "imatrix": "Compute an importance matrix for quantization.",
    "export": "Merge LoRA adapters into a model.",
    "why": "Show where the time goes, and what would help.",
    "bench": "Measure how fast a model runs.",
    "perplexity": "Measure the perplexity of a model on a text.",
    "eval": "Evaluate a model on questions with known answers.",
    "plan": "Show the steps that compute a model.",
    "tokenize": "Convert text to tokens and back.",
    "cluster": "Check a cluster, or run a replica for another machine.",
    "stage": "Run a part of a model that is larger than one machine.",
}


def _switch(name: str, help: str, does: Any) -> click.Option:
    """Return an option that runs a function and exits."""

    def call(context: click.Context, _: click.Parameter, is_given: bool) -> None:
        if is_given and not context.resilient_parsing:
            does()
            context.exit()

    return click.Option([name], is_flag=True, is_eager=True, expose_value=False, help=help, callback=call)


def _completion(name: str) -> None:
    """Call a function of the completion module, which is imported late because it is rarely needed."""
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
    """Return the error for failed allocations, with the requested size (if NumPy reports it) and the free memory."""
    from woolly.cli.terminal.human_readable import format_size
    from woolly.machine.memory import available_memory

    asked = str(error) if "allocate" in str(error) else "the system refused memory"
    return (
        f"{asked}; {format_size(available_memory())} are available:"
        " a smaller --ctx, a smaller model or a higher limit (ulimit -v) would do"
    )


def main() -> None:
    """Entry point. Exit codes: 0 success, 2 usage error, 1 other errors, 130 Ctrl-C."""
    # The 80,000 objects of imported modules and a model stay alive. A garbage collection after every 700 allocations
    # takes a tenth of the start-up time; one after 50,000 takes 30 ms.
    gc.set_threshold(100_000)
    if hasattr(signal, "SIGPIPE") and sys.argv[1:2] != ["pull"]:
        # If the reader of the output exits (`woolly plan ... | head`), end without a message, as other tools do. Not
        # for downloads, which notice closed connections themselves; the server handles SIGPIPE itself.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115  (started with standard output closed)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Characters that the terminal cannot encode are replaced, as ' or \\u4f60, instead of raising an error.
            with suppress(OSError):  # the stream was replaced after opening
                stream.reconfigure(errors=PLAIN)
            if sys.platform == "win32":
                # Write UTF-8 to pipes and files, as on other systems. Windows code pages lack most characters.
                stream.reconfigure(encoding="utf-8")
    warnings.showwarning = lambda message, *_, **__: print_status(f"woolly: warning: {message}")
    try:
        app()
    except WoollyError as error:
        print_status(f"woolly: error: {error}")
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except (KeyboardInterrupt, click.Abort):  # click turns Ctrl-C outside of a command into Abort
        sys.exit(130)
    except MemoryError as error:
        print_status(f"woolly: error: {_out_of_memory(error)}")
        sys.exit(1)
    except OSError as error:
        # Standard output is full or closed. Other files raise different errors.
        print_status(f"woolly: error: {error.strerror or error}")
        sys.exit(1)
    finally:
        # The process ends, so skip the final garbage collection, which takes up to 80 ms.
        gc.freeze()
