"""The soak runs, and finds nothing in the few seconds that a test may take."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads memory where Linux tells it")
def test_short_soak_of_a_tiny_model():
    command = [sys.executable, "-m", "tests.soak.soak", "--seconds", "4", "--model", "tiny", "--threads", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout)
    assert summary["ok"]
    assert sum(summary["outcomes"].values()) > 0
    assert (ROOT / "scripts" / "soak").stat().st_mode & 0o111
