"""`woolly serve` and `woolly-server`. The options are in `serving/settings/table.py`."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from dataclasses import Field
from pathlib import Path
from typing import Any

import click

from woolly.cli.commands.pull import pulled
from woolly.cli.parse.command import Command, command
from woolly.cli.parse.help import boxed_help
from woolly.cli.parse.options import complete_model, hub_file_option, hub_model, hub_option, one_model
from woolly.cli.parse.parameter import TYPED, Argument, Bundle, Option
from woolly.errors import RequestError
from woolly.serving.settings.configuration import environment_name, kind_of, read_settings
from woolly.serving.settings.table import groups, in_order

# Settings whose two-part values may be two words.
_PAIRS = ("control_vector_scaled", "control_vector_layer_range")


# Settings that other users should not read.
_SECRETS = ("api_key", "admin_key", "token_secret", "cluster_secret")


class _Serve(Command):
    """Command with many options, shown in boxes. Errors only name a flag if the user typed it."""

    def get_help(self, ctx: click.Context) -> str:
        return boxed_help(self, ctx)

    def flagged(self, error: RequestError, ctx: click.Context) -> RequestError:
        if error.field in ctx.meta.get(TYPED, {}):
            return super().flagged(error, ctx)
        return error.with_message(error.advised(self.flags(ctx)), type(error))


def _option(setting: Field[Any], section: str) -> Option:
    """Return the option for a setting."""
    kind = kind_of(setting.name)
    flags, shown = setting.metadata["flags"], setting.metadata["shown"]
    if shown is None and setting.default not in (None, ()):
        yes, _, no = flags[0].partition("/")
        shown = (yes if setting.default else no) if kind is bool else str(setting.default)
    complete = complete_model if setting.name == "model" else None
    return Option(
        " ".join(flags),
        setting.metadata["help"],
        kind,
        to=setting.name,
        shown=shown or "",
        section=section,
        complete=complete,
        is_pair=setting.name in _PAIRS,
    )


_GROUPS = groups()


@command(
    Argument("first", "MODEL", "A GGUF file, or the name of a pulled model; the same as -m.", complete=complete_model),
    Bundle(
        "flags",
        (
            Option("--config", "Settings file.", Path, shown="woolly.toml if it exists, or WOOLLY_CONFIG"),
            hub_option(_GROUPS["model"]),
            hub_file_option(_GROUPS["model"]),
            *(_option(setting, _GROUPS[setting.name]) for setting in in_order()),
        ),
    ),
    kind=_Serve,
    common="model ctx_size gpu_layers parallel host port api_key_file mcp models_dir log_level config",
)
def serve(first: str | None, flags: Mapping[str, Any]) -> None:
    """Start a server with the APIs of OpenAI, Anthropic, Ollama, llama-server and others: woolly serve smollm2."""
    # Imported late: other commands and --help do not need a web framework.
    from woolly.serving.observability.logs import log, set_up_logs
    from woolly.serving.settings.checks import has_replicas, late_swap

    flags = dict(flags)
    repo, file = flags.pop("hf_repo", None), flags.pop("hf_file", None)
    if repo is not None or file is not None:
        flags["model"] = pulled(str(hub_model(flags.get("model"), repo, file)))
    elif str(flags.get("model")).startswith(("https://", "http://")):
        flags["model"] = pulled(flags["model"])
    if first is not None:
        flags = {**flags, "model": one_model("serve", first, flags.get("model"))}
    early: list[tuple[Any, ...]] = []  # warnings before logging is configured
    show = warnings.showwarning
    warnings.showwarning = lambda *warning, **_: early.append(warning)
    try:
        settings = read_settings(flags)
        for name in _SECRETS:
            if name in flags:
                flag = f"--{name.replace('_', '-')}"
                warnings.warn(
                    f"{flag} is visible to other users in the list of processes; use {flag}-file or"
                    f" {environment_name(name)} instead",
                    stacklevel=1,
                )
        if (late := late_swap(settings)) is not None:
            warnings.warn(late, stacklevel=1)
        set_up_logs(*settings.log_options)
    except BaseException:  # logging is not configured: show them as other commands do
        warnings.showwarning = show
        for warning in early:
            show(*warning)
        raise
    warnings.showwarning = lambda message, *_, **__: log.warning(str(message))
    for message, *_ in early:
        log.warning(str(message))
    if has_replicas(settings):
        from woolly.cluster.front import run
    else:
        from woolly.serving.lifecycle.http_server import run

    raise click.exceptions.Exit(run(settings, end=os._exit))


def main() -> None:
    """Entry point of `woolly-server`, the earlier name of `woolly serve`."""
    from woolly.cli.app import main as woolly

    sys.argv.insert(1, "serve")
    woolly()
