"""Check of all weights of a file, for `woolly show --check`."""

from __future__ import annotations

from typing import Any

from woolly.cli.terminal.human_readable import plural
from woolly.cli.terminal.progress import bytes_bar
from woolly.errors import GGUFError
from woolly.gguf import GGUFFile
from woolly.store import WHEEL_MODELS
from woolly.store.checksum import sha256_of

_MAX_NAMED = 3


def check_weights(file: GGUFFile) -> dict[str, Any]:
    """Read every weight and hash every file. Raise GGUFError for values that are not finite, or a wrong checksum."""
    from woolly.gguf.finite_values import count_not_finite

    with bytes_bar(f"checking {file.path.name}") as report:
        found, skipped = count_not_finite(file, report)
    if found:
        named = ", ".join(f"{name} ({plural(n, 'value')})" for name, n in list(found.items())[:_MAX_NAMED])
        more = f" and {len(found) - _MAX_NAMED} others" if len(found) > _MAX_NAMED else ""
        raise GGUFError(
            f"{file.path}: {plural(len(found), 'tensor')} with NaN or infinite values, {named}{more}; download the"
            " file again, or convert the checkpoint again"
        )
    digests = {path.name: sha256_of(path) for path in file.paths}
    known = {model.file_name: model.sha256 for model in WHEEL_MODELS.values()}
    for name, sha256 in digests.items():
        if name in known and sha256 != known[name]:
            raise GGUFError(f"{file.path}: the SHA-256 differs from the catalogue's; run `woolly pull` to replace it")
    return {
        "tensors": len(file.tensors) - len(skipped),
        "not_read": list(skipped),
        "sha256": digests,
        "in_catalogue": [name for name in digests if name in known],
    }


def check_lines(check: dict[str, Any]) -> list[str]:
    """Return the result as lines of text."""
    lines = [f"check  {plural(check['tensors'], 'tensor')} read, all values are finite"]
    if check["not_read"]:
        lines.append(f"check  {plural(len(check['not_read']), 'tensor')} of unsupported types not read")
    for name, sha256 in check["sha256"].items():
        note = " (as in the catalogue)" if name in check["in_catalogue"] else ""
        lines.append(f"sha256  {sha256}  {name}{note}")
    return lines
