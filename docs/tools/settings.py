"""docs/reference/settings.md, made from `Settings`: `python docs/tools/settings.py > docs/reference/settings.md`."""

from __future__ import annotations

from dataclasses import Field
from typing import Any

from woolly.serving.settings.configuration import environment_name
from woolly.serving.settings.table import groups, in_order

_HEAD = """# Settings of the server

Made from the settings themselves by `python docs/tools/settings.py > docs/reference/settings.md`; a test holds it to
that. [serving.md](../use/serving.md) explains what they are for.

Flags come before the environment, the environment before the file, the file before the defaults. The file is
`woolly.toml` in the working folder, or what `--config` or `WOOLLY_CONFIG` names. Its table `[serve]` takes the names of
the variables without `WOOLLY_` and in lower case, as `ctx_size` or `ctx-size`; an unknown name is refused. Lists are
separated by commas. Flags have llama-server's names if it has the same setting.

`--config` has no entry in the file. `WOOLLY_HOME` moves the models folder and the sessions, `WOOLLY_ISA` chooses
kernels; both apply to every command."""


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


if __name__ == "__main__":
    print(reference(), end="")
