"""Files that appear whole or not at all."""

import os
import signal
import subprocess
import sys

import pytest

from woolly.store.safe_files import atomic_write, fsync_and_rename


def test_file_is_replaced_only_when_complete_and_synced(tmp_path, monkeypatch):
    path, synced = tmp_path / "file", []
    path.write_bytes(b"before")
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append((os.fstat(fd).st_size, path.read_bytes())))
    with atomic_write(path, mode=0o600) as file:
        file.write(b"after it")
        assert path.read_bytes() == b"before"
    assert synced == [(8, b"before")]
    assert path.read_bytes() == b"after it" and list(tmp_path.iterdir()) == [path]
    if os.name == "posix":
        assert path.stat().st_mode & 0o777 == 0o600
    (tmp_path / "aside").write_bytes(b"third")
    fsync_and_rename(tmp_path / "aside", path)
    assert synced[1:] == [(5, b"after it")] and path.read_bytes() == b"third"


@pytest.mark.parametrize("error", [OSError, ValueError, KeyboardInterrupt])
def test_failed_write_leaves_everything_unchanged(tmp_path, error):
    path = tmp_path / "file"
    path.write_bytes(b"before")
    with pytest.raises(error), atomic_write(path) as file:
        file.write(b"half")
        raise error
    assert path.read_bytes() == b"before" and list(tmp_path.iterdir()) == [path]
    with pytest.raises(OSError), atomic_write(tmp_path / "absent" / "file"):
        pass


def test_killed_process_leaves_the_file_unchanged(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"before")
    code = "import os, sys, signal; from pathlib import Path; from woolly.store.safe_files import atomic_write\n"
    code += "with atomic_write(Path(sys.argv[1])) as file: file.write(b'half'); file.flush(); os.kill(os.getpid(), 9)"
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"before"
    (left,) = set(tmp_path.iterdir()) - {path}
    assert left.suffix == ".tmp"
