"""LLAMA_ARG_* variables, read as the flags that they stand for, and Ollama's variables, of which a notice is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import click

from woolly.cli.parse.flags.ollama import OLLAMA_VARIABLES
from woolly.cli.parse.flags.table import find_flag

PREFIX = "LLAMA_ARG_"
# Commands whose originals read these variables.
READING = ("serve", "run", "chat", "perplexity", "imatrix", "embed")

# Flags whose names cannot be derived from their variables.
_NAMES = {
    "BATCH": "--batch-size",
    "UBATCH": "--ubatch-size",
    "CHECKPOINT_MIN_SPACING_NT": "--checkpoint-min-step",
    "ROPE_SCALING_TYPE": "--rope-scaling",
    "N_PARALLEL": "--parallel",
    "DIO": "--direct-io",
    "FIT_ESTIMATE": "--fit-print",
    "STATIC_PATH": "--path",
    "ENDPOINT_METRICS": "--metrics",
    "ENDPOINT_PROPS": "--props",
    "ENDPOINT_SLOTS": "--slots",
    "THINK": "--reasoning-format",
    "THINK_BUDGET": "--reasoning-budget",
    "THINK_BUDGET_MESSAGE": "--reasoning-budget-message",
    "SPEC_DRAFT_HF_REPO": "--spec-draft-hf",
    "SPEC_DRAFT_CACHE_TYPE_K": "--spec-draft-type-k",
    "SPEC_DRAFT_CACHE_TYPE_V": "--spec-draft-type-v",
}
_OTHERS = {"LLAMA_API_KEY": "--api-key", "MTMD_BACKEND_DEVICE": "--mmproj-device"}
_FALSE = ("0", "false", "off", "no", "disabled")


def flag_of(variable: str) -> str:
    """Return the flag of a variable, or an empty string for variables of other programs."""
    if variable in _OTHERS:
        return _OTHERS[variable]
    if not variable.startswith(PREFIX):
        return ""
    name = variable.removeprefix(PREFIX)
    return _NAMES.get(name) or f"--{name.lower().replace('_', '-')}"


def words_of(
    command: str, options: Mapping[str, click.Option], environment: Mapping[str, str]
) -> Iterator[tuple[str, list[str]]]:
    """Yield each variable that is set, with the words that it stands for."""
    if command not in READING:
        return
    for variable in sorted(environment):
        flag, value = flag_of(variable), environment[variable]
        if not flag or not value:
            continue
        if flag not in options and find_flag(command, flag, options) is None and flag.startswith("--no-"):
            flag, value = f"--{flag.removeprefix('--no-')}", "0"  # LLAMA_ARG_NO_MMAP
        if flag not in options and find_flag(command, flag, options) is None:
            if command == "serve":
                click.echo(f"woolly: {variable} has no effect: woolly serve has no option {flag}", err=True)
            continue  # llama.cpp's tools ignore variables of flags that they do not have
        yield variable, _words(command, flag, value, options)


def _words(command: str, flag: str, value: str, options: Mapping[str, click.Option]) -> list[str]:
    """Return the flag with its value. A switch has no value, and false turns it off, if it can be turned off."""
    row = find_flag(command, flag, options)
    option = options.get(flag)
    is_switch = option.is_flag if option is not None else row is not None and not row.takes_value
    if not is_switch:
        return [flag, value]
    if value.lower() not in _FALSE:
        return [flag]
    off = f"--no-{flag.removeprefix('--')}"
    return [off] if off in options or find_flag(command, off, options) is not None else []


def ollama_notice(command: str, environment: Mapping[str, str]) -> str:
    """Return the notice about Ollama's variables, or an empty string if none is set."""
    found = [name for name in OLLAMA_VARIABLES if environment.get(name)]
    if command != "serve" or not found:
        return ""
    instead = [OLLAMA_VARIABLES[name] for name in found if OLLAMA_VARIABLES[name]]
    return f"{', '.join(found)} of Ollama {'has' if len(found) == 1 else 'have'} no effect" + (
        f"; Woolly reads {', '.join(instead)}" if instead else ""
    )
