"""The sdist, made by the build backend without compiling anything, holds what a build needs and no more."""

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = Path("woolly/serving/pages/web/static")
KERNELS = Path("woolly/runtime/vulkan/kernels.bin")  # if native/gpu/compile.py has made it: a build need not have Slang
MAKE = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"

BINARY = {".woff2", ".png"}


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdist")
    subprocess.run([sys.executable, "-c", MAKE, folder], cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("woolly_llm-*.tar.gz")
    return path


@pytest.fixture(scope="module")
def files(archive):
    """The bytes of every file by its path below the archive's one folder."""
    with tarfile.open(archive) as tar:
        members = [member for member in tar if not member.isdir()]
        assert all(member.isfile() for member in members), "links do not survive everywhere"
        return {Path(*Path(member.name).parts[1:]): tar.extractfile(member).read() for member in members}


@pytest.fixture(scope="module")
def texts(files):
    """The text of every file but the archive of kernels, a font and the icons of the page, which are none."""
    return {path: held.decode() for path, held in files.items() if path != KERNELS and path.suffix not in BINARY}


def test_folders_no_build_needs_stay_out_of_the_sdist(texts):
    assert {path.parts[0] for path in texts} == {
        "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "PKG-INFO", "README.md", "native", "pyproject.toml", "woolly",
    }  # fmt: skip


def test_sdist_contains_only_sources(archive, texts):
    kinds = {path.suffix for path in texts if path.parts[0] in {"native", "woolly"}}
    assert kinds <= {
        ".py",
        ".pyi",
        ".typed",
        ".cpp",
        ".h",
        ".cu",
        ".cuh",
        ".slang",
        ".txt",
        ".html",
        ".css",
        ".js",
        ".svg",
        ".json",
        ".webmanifest",
    }
    assert not any("__pycache__" in path.parts for path in texts)
    assert archive.stat().st_size < 3_000_000  # of 2.8 MB, 0.8 are kernels for GPUs, if they were compiled before


def test_sdist_has_every_cmake_source(texts):
    listing = texts[Path("native/CMakeLists.txt")]
    named = re.findall(r"^\s+([\w/]+\.cpp)$", listing, re.MULTILINE)
    named += [
        f"cpu/kernels/targets/{level}.cpp" for level in re.findall(r"woolly_level\((\w+)", listing) if level != "level"
    ]
    assert len(named) > 20
    assert not [name for name in named if Path("native", name) not in texts]


def test_sdist_has_every_included_header(texts):
    missing = []
    for path, text in texts.items():
        if path.suffix in {".cpp", ".h", ".cu", ".cuh", ".slang"}:
            for name in re.findall(r'#include "([^"]+)"', text):
                roots = ("native", "native/cuda", "native/gpu", path.parent)
                if not {Path(root, name) for root in roots} & set(texts):
                    missing.append(f"{path}: {name}")
    assert not missing


def test_sdist_has_the_vulkan_kernels_as_compiled(files):
    made = (ROOT / KERNELS).read_bytes() if (ROOT / KERNELS).exists() else None
    assert files.get(KERNELS) == made


def test_sdist_has_the_complete_python_package_and_web_page(files):
    def sources(folder):
        found = (path.relative_to(ROOT) for path in (ROOT / folder).rglob("*") if path.is_file())
        return {path for path in found if path.suffix not in {".pyc", ".so"} and not path.name.startswith(".")}

    assert sources("woolly") <= set(files)
    assert {PAGE / "index.html", PAGE / "js" / "app" / "main.js", Path("woolly/_native.pyi")} <= set(files)
