"""The virtual environment that scripts/setup.sh makes, with the Python that runs the tests."""

import ensurepip
import os
import subprocess
import sys
from pathlib import Path

SETUP = Path(__file__).resolve().parents[2] / "scripts" / "setup.sh"


def test_environment_has_unpacked_pip(tmp_path):
    made = tmp_path / "a folder" / ".venv"
    script = '. "$0"; python=$1 venv=$2; make_venv_with_pip'
    subprocess.run(["sh", "-c", script, SETUP, sys._base_executable, made], check=True, timeout=60)
    assert f"exec '{made}/bin/python' -m pip" in (made / "bin" / "pip").read_text()
    assert os.access(made / "bin" / "pip", os.X_OK)
    asked = "import importlib.metadata as m; print(m.version('pip'))"
    said = subprocess.run([made / "bin" / "python", "-c", asked], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == ensurepip.version()
    assert not list(made.rglob("*.pyc"))  # pip did not run
