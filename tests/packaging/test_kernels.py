"""Kernels that are compiled already go into a build of any system: the end of native/CMakeLists.txt, run alone."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from native.cuda.compile import MARK

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def configure(tmp_path):
    """Configures a project of that part alone, as a system builds it, and installs what it names."""
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("no cmake here")
    build = (ROOT / "native" / "CMakeLists.txt").read_text()
    part = build[build.index('if(NOT "$ENV{WOOLLY_KERNELS}" STREQUAL "")') :]
    head = 'cmake_minimum_required(VERSION 3.18)\nproject(part LANGUAGES NONE)\nset(CMAKE_SYSTEM_NAME "{}")\n'

    def run(kernels, system="Windows"):
        (tmp_path / "CMakeLists.txt").write_text(head.format(system) + part)
        shutil.rmtree(tmp_path / "build", ignore_errors=True)
        environment = {**os.environ, "WOOLLY_KERNELS": str(kernels)}
        configured = [cmake, "-S", tmp_path, "-B", tmp_path / "build", "-G", "Unix Makefiles"]
        done = subprocess.run(configured, env=environment, capture_output=True, text=True)
        if done.returncode == 0:
            installed = [cmake, "--install", tmp_path / "build", "--prefix", tmp_path / "out"]
            subprocess.run(installed, check=True, capture_output=True)
        return done, tmp_path / "out" / "woolly" / "runtime" / "cuda" / "kernels.bin"

    return run


@pytest.mark.parametrize("system", ["Windows", "Linux", "Darwin"])
def test_kernel_archive_is_accepted_under_any_name(configure, system, tmp_path):
    given = tmp_path / "all of them.bin"
    given.write_bytes(b"woollyk2" + bytes(range(256)))
    done, kernels = configure(given, system)
    assert done.returncode == 0, done.stderr
    assert kernels.read_bytes() == given.read_bytes()


def test_invalid_kernel_archive_is_rejected_by_name(configure, tmp_path):
    other = tmp_path / "other.bin"
    other.write_bytes(b"PK\3\4 a zip file")
    for given in (other, tmp_path / "missing.bin", tmp_path):
        done, _ = configure(given)
        assert done.returncode != 0
        text = " ".join(done.stderr.split())
        assert f"WOOLLY_KERNELS is {given}, and a file that native/cuda/compile.py wrote was expected" in text


def test_missing_kernel_archive_is_allowed_on_windows(configure):
    done, kernels = configure("")
    assert done.returncode == 0, done.stderr
    assert not kernels.exists()


def test_archive_mark_is_that_of_the_compiler():
    (digits,) = re.findall(r'mark STREQUAL "(\w+)"', (ROOT / "native" / "CMakeLists.txt").read_text())
    assert MARK.startswith(bytes.fromhex(digits))
