"""An archive of Vulkan kernels goes into a package if it is that of the sources: the build backend, without CMake."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from native.gpu.compile import MARK

ROOT = Path(__file__).resolve().parents[2]
ARCHIVE = "woolly/runtime/vulkan/kernels.bin"
MAKE = """
import sys
sys.path.insert(0, "native/cuda")
import backend
backend.build_sdist("out")
backend.build_wheel("out", {"wheel.cmake": "false", "wheel.exclude": "woolly/other.txt"})
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Woolly with one module."""
    root = tmp_path_factory.mktemp("project")
    for name in ("pyproject.toml", ".gitignore", "README.md", "LICENSE", "native/cuda/backend.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    shutil.copy(ROOT / "native/cuda/compile.py", root / "native/cuda")
    shutil.copytree(ROOT / "native/gpu", root / "native/gpu")
    (root / ARCHIVE).parent.mkdir(parents=True)
    for name in ("__init__.py", "other.txt"):
        (root / "woolly" / name).write_text("")
    return root


def digest(project):
    command = "import sys; sys.path.insert(0, 'native/gpu'); import compile; print(compile.sources_digest())"
    return subprocess.run([sys.executable, "-c", command], cwd=project, check=True, capture_output=True).stdout.strip()


@pytest.mark.parametrize("of", ["these sources", "others", "nothing"])
def test_stale_archive_stays_out_of_sdist_and_wheel(project, of):
    index = b'{"sources": "%s"}' % (digest(project) if of == "these sources" else b"0" * 64)
    data = MARK + len(index).to_bytes(4, "little") + index if of != "nothing" else b"no archive"
    (project / ARCHIVE).write_bytes(data)
    made = subprocess.run([sys.executable, "-c", MAKE], cwd=project, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    (sdist,), (wheel,) = (project / "out").glob("*.tar.gz"), (project / "out").glob("*.whl")
    with tarfile.open(sdist) as packed:
        in_sdist = {name.partition("/")[2] for name in packed.getnames()}
    with zipfile.ZipFile(wheel) as packed:
        in_wheel = set(packed.namelist())
    is_taken = of == "these sources"
    assert "woolly/__init__.py" in in_sdist & in_wheel
    assert (ARCHIVE in in_sdist, ARCHIVE in in_wheel) == (is_taken, is_taken)
    assert "woolly/other.txt" not in in_wheel  # what a person leaves out stays out
    sentence = f"woolly: {ARCHIVE} is not of these sources and is left out; `python native/gpu/compile.py` makes it"
    assert (sentence in made.stderr) is not is_taken
