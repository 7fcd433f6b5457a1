"""`woolly cache`: prompt cache on disk (--cache-disk)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from woolly.cli.parse.command import command
from woolly.cli.parse.options import AS_JSON, complete_model, read_text
from woolly.cli.parse.parameter import Argument, Option
from woolly.cli.parse.usage_errors import UsageError
from woolly.cli.terminal.human_readable import format_size, plural
from woolly.cli.terminal.progress import print_status
from woolly.cli.terminal.screen import print_table, stdout_console
from woolly.errors import RequestError

if TYPE_CHECKING:
    from woolly.cache.page_folder import PageFile
    from woolly.llm import LLM

_ACTIONS = ("list", "verify", "clear", "pin")
_COUNTED = ("pages", "windows", "states", "pinned")


@command(
    Argument("action", "ACTION", "list, verify, clear or pin.", shown="list"),
    Argument("file", "FILE", "For pin: a prompt as text, or a conversation as .json."),
    Option("--model -m", "For pin: the model.", complete=complete_model),
    Option("--size", "For pin: maximum size of the cache.", default="20GB"),
    Option("--folder", "Folder of the cache.", Path, shown="pages next to the models folder"),
    Option("--pinned", "For clear: also remove pinned pages.", bool, default=False),
    AS_JSON,
)
def cache(
    action: str | None,
    file: str | None,
    model: str | None,
    size: str,
    folder: Path | None,
    pinned: bool,
    as_json: bool,
) -> None:
    """List, check, remove or pin the cached prompts of --cache-disk.

    `list` shows totals by identity, `verify` reads every file and removes damaged files, `clear` removes all files that
    are not pinned, and `pin` computes a prompt and keeps it in the cache until `clear --pinned`.
    """
    from woolly.cache.page_folder import stored_pages
    from woolly.llm.disk_cache import pages_folder

    action = action or "list"
    if action not in _ACTIONS:
        raise UsageError(f"unknown action {action!r}; expected one of {', '.join(_ACTIONS)}")
    if action != "pin" and file is not None:
        raise UsageError(f"{action} takes no file, but {file} is given")
    place = pages_folder(folder)
    if action == "pin":
        _pin(file, model, size, place)
        return
    files = list(stored_pages(place))
    if action == "verify":
        _verify(files, as_json)
    elif action == "clear":
        _clear(files, pinned, as_json)
    else:
        _list(files, place, as_json)


def _list(files: Sequence[PageFile], place: Path, as_json: bool) -> None:
    by_identity: dict[str, dict[str, Any]] = {}
    for file in files:
        entry = by_identity.setdefault(
            file.identity, {"identity": file.identity, **dict.fromkeys(_COUNTED, 0), "bytes": 0, "used": 0.0}
        )
        entry[{"page": "pages", "state": "states"}.get(file.kind, "windows")] += 1
        entry["pinned"] += file.is_pinned
        entry["bytes"] += file.n_bytes
        entry["used"] = max(entry["used"], file.used)
    if as_json:
        click.echo(json.dumps({"folder": str(place), "identities": list(by_identity.values())}, indent=2))
        return
    if not by_identity:
        print_status(f"there are no pages in {place}; `woolly serve --cache-disk 20GB` writes them")
        return
    from rich.table import Table

    table = Table("identity", *_COUNTED, "size", "last used", box=None, pad_edge=False)
    for entry in by_identity.values():
        used = datetime.fromtimestamp(entry["used"]).strftime("%Y-%m-%d %H:%M")
        counts = (str(entry[name]) for name in _COUNTED)
        table.add_row(entry["identity"], *counts, format_size(entry["bytes"]), used)
    print_table(stdout_console(), table)


def _verify(files: Sequence[PageFile], as_json: bool) -> None:
    damaged = []
    for file in files:
        if (fault := file.fault()) is not None:
            damaged.append({"path": str(file.path), "fault": fault})
            with contextlib.suppress(OSError):
                file.path.unlink()
    if as_json:
        click.echo(json.dumps({"files": len(files), "damaged": damaged}, indent=2))
    else:
        for entry in damaged:
            click.echo(f"{entry['path']}: {entry['fault']}; removed")
        click.echo(f"{plural(len(files) - len(damaged), 'file')} of {len(files)} intact")


def _clear(files: Sequence[PageFile], pinned: bool, as_json: bool) -> None:
    removed = [file for file in files if pinned or not file.is_pinned]
    for file in removed:
        with contextlib.suppress(OSError):
            file.path.unlink()
            file.unpin()
    n_bytes = sum(file.n_bytes for file in removed)
    if as_json:
        click.echo(json.dumps({"removed": len(removed), "bytes": n_bytes, "kept": len(files) - len(removed)}))
    else:
        click.echo(f"{plural(len(removed), 'file')} removed, {format_size(n_bytes)}")


def _pin(file: str | None, model: str | None, most: str, place: Path) -> None:
    if file is None or model is None:
        raise UsageError("pin needs a prompt and a model: woolly cache pin prompt.txt -m smollm2")
    from woolly.cache.page_folder import PageFolder
    from woolly.llm import LLM
    from woolly.llm.disk_cache import pages_name
    from woolly.runtime import PAGE_SIZE, parse_size

    text = read_text("FILE", Path(file))
    with LLM(model, cache_disk=most, cache_disk_folder=place) as llm:
        if not llm.engine.has_disk:
            raise RequestError("this model's cache cannot be stored on disk")
        request = _request(llm, file, text)
        llm.driver.complete([[request]])
        digests = request.digests_to(len(request.prompt) // PAGE_SIZE)
        name = pages_name(llm.engine.program, llm.identity())
        windows = [f"window{i}" for i in range(len(llm.engine.program.plan.windows))]
    folder = PageFolder(place, name, parse_size("size", most) or 0)
    kept = [digest for digest in digests if folder.has("page", digest)]
    for digest in kept:
        for kind in ("page", "state", *windows):
            if folder.has(kind, digest):
                folder.pin(kind, digest)
    if len(kept) < len(digests):
        raise RequestError(f"{len(digests) - len(kept)} of {len(digests)} pages were not written: {folder.refusal}")
    click.echo(f"{plural(len(kept), 'page')} pinned, of {plural(len(request.prompt), 'token')}")


def _request(llm: LLM, file: str, text: str) -> Any:
    """Return the request whose prompt is pinned."""
    if not file.lower().endswith(".json"):
        return llm.prepare(text, max_tokens=1)[0][0]
    try:
        messages = json.loads(text)
    except ValueError as error:
        raise RequestError(f"FILE: {file} is not valid JSON ({error})") from None
    return llm.prepare_chat(messages, max_tokens=1)[1][0]
