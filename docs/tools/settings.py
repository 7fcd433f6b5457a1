"""docs/reference/settings.md, from the table of settings."""

from __future__ import annotations

from dataclasses import Field
from typing import Any

from woolly.serving.settings.configuration import environment_name
from woolly.serving.settings.table import groups, in_order

_HEAD = """# Settings of the server

Generated from the table of settings by `scripts/generate`. [Serving](../use/serving.md) is the guide.

Precedence: flags, environment, file, defaults. The file is `woolly.toml` in the working folder, or the file named by
`--config` or `WOOLLY_CONFIG`. Its table `[serve]` has the names of the variables in lower case without `WOOLLY_`
(`ctx_size` or `ctx-size`); unknown names are errors. Lists are separated by commas. Flags have the names of
llama-server.

`--config` has no entry in the file. `WOOLLY_HOME` moves the models folder and the sessions, `WOOLLY_ISA` selects the
CPU kernels; both apply to every command."""


def reference() -> str:
    """Returns the page as Markdown."""
    parts, group = [_HEAD], ""
    for setting in in_order():
        if groups()[setting.name] != group:
            group = groups()[setting.name]
            parts.append(f"\n\n## {group}\n\n| flag | environment | default | |\n|---|---|---|---|")
        parts.append(f"\n{_row(setting)}")
    return "".join(parts) + "\n"


def _row(setting: Field[Any]) -> str:
    flags = " ".join(f"`{name}`" for flag in setting.metadata["flags"] for name in flag.split("/"))
    cells = (flags, f"`{environment_name(setting.name)}`", _default(setting), setting.metadata["help"])
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _default(setting: Field[Any]) -> str:
    value = setting.default
    if setting.metadata["shown"] is not None:
        return str(setting.metadata["shown"])
    if value is None or value == ():
        return "none"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
