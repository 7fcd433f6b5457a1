"""The sdist, made by the build backend without compiling anything, holds what a build needs and no more."""

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = Path("woolly/serving/pages/web/static")
MAKE = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdist")
    subprocess.run([sys.executable, "-c", MAKE, folder], cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("woolly_llm-*.tar.gz")
    return path


@pytest.fixture(scope="module")
def texts(archive):
    """The text of every file by its path below the archive's one folder."""
    with tarfile.open(archive) as tar:
        files = [member for member in tar if not member.isdir()]
        assert all(member.isfile() for member in files), "links do not survive everywhere"
        return {Path(*Path(file.name).parts[1:]): tar.extractfile(file).read().decode() for file in files}


def test_a_folder_of_the_checkout_that_no_build_needs_stays_out(texts):
    assert {path.parts[0] for path in texts} == {
        "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "PKG-INFO", "README.md", "native", "pyproject.toml", "woolly",
    }  # fmt: skip


def test_only_sources_are_in_it(archive, texts):
    kinds = {path.suffix for path in texts if path.parts[0] in {"native", "woolly"}}
    assert kinds <= {
        ".py",
        ".pyi",
        ".typed",
        ".cpp",
        ".h",
        ".cu",
        ".cuh",
        ".txt",
        ".html",
        ".css",
        ".js",
        ".svg",
        ".json",
    }
    assert not any("__pycache__" in path.parts for path in texts)
    assert archive.stat().st_size < 2 << 20


def test_every_source_that_cmake_names_is_in_it(texts):
    listing = texts[Path("native/CMakeLists.txt")]
    named = re.findall(r"^\s+([\w/]+\.cpp)$", listing, re.MULTILINE)
    named += [
        f"cpu/kernels/targets/{level}.cpp" for level in re.findall(r"woolly_level\((\w+)", listing) if level != "level"
    ]
    assert len(named) > 20
    assert not [name for name in named if Path("native", name) not in texts]


def test_every_header_that_a_source_includes_is_in_it(texts):
    missing = []
    for path, text in texts.items():
        if path.suffix in {".cpp", ".h", ".cu", ".cuh"}:
            for name in re.findall(r'#include "([^"]+)"', text):
                if not {Path("native", name), Path("native/cuda", name), path.parent / name} & set(texts):
                    missing.append(f"{path}: {name}")
    assert not missing


def test_the_python_package_and_its_web_page_are_whole(texts):
    def sources(folder):
        found = (path.relative_to(ROOT) for path in (ROOT / folder).rglob("*") if path.is_file())
        return {path for path in found if path.suffix not in {".pyc", ".so"} and not path.name.startswith(".")}

    assert sources("woolly") <= set(texts)
    assert {PAGE / "index.html", PAGE / "js" / "app" / "main.js", Path("woolly/_native.pyi")} <= set(texts)
