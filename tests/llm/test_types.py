"""Type checkers accept ordinary code."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = "tests/cases/ordinary_code.py"


def test_mypy_accepts_ordinary_code():
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", PAGE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (0, "")


def test_pyright_accepts_ordinary_code():
    if (pyright := shutil.which("pyright")) is None:
        pytest.skip("pyright is not installed")
    done = subprocess.run([pyright, PAGE], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout
