"""Platform-specific native code is in one folder or behind a platform check."""

import ast
import functools
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

NATIVE = Path(__file__).resolve().parent.parent.parent / "native"
ROOT = NATIVE.parent
SOURCES = sorted(p for p in NATIVE.rglob("*") if p.suffix in {".cpp", ".h"})

# Headers that not every one of Linux, macOS and Windows has.
SOME_SYSTEMS = re.compile(
    r"(sys|asm|linux|mach|net|netinet|arpa)/.*|(unistd|pthread|sched|fcntl|dlfcn|poll|pwd|grp|termios|semaphore|strings"
    r"|dirent|windows|intrin|io|process)\.h"
)
ROOM = {"machine/posix.cpp", "machine/windows.cpp"}  # CMake takes one of them


def unguarded(text):
    """Headers of some systems that a file includes without asking for the system."""
    found, questions = [], []
    for line in text.splitlines():
        if match := re.match(r"\s*#\s*(if|ifdef|ifndef|elif|else|endif)\b(.*)", line):
            word, condition = match.groups()
            if word in {"if", "ifdef", "ifndef"}:
                questions.append(condition)
            elif word == "elif":
                questions[-1] += condition
            elif word == "endif":
                questions.pop()
        elif match := re.match(r"\s*#\s*include\s*<([^>]+)>", line):
            asked = any(re.search(r"__linux__|__APPLE__|_WIN32", q) for q in questions)
            if SOME_SYSTEMS.fullmatch(match[1]) and not asked:
                found.append(match[1])
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(NATIVE)))
def test_platform_headers_are_included_only_in_the_platform_folder(path):
    # The emulated GPU is a part of the tests, which run it on Linux alone.
    if path.relative_to(NATIVE).as_posix() not in ROOM and "cuda/emulated" not in path.as_posix():
        assert unguarded(path.read_text()) == []


def test_check_sees_a_header_without_a_guard_and_after_one():
    guarded = "#if defined(_WIN32)\n#include <windows.h>\n#else\n#include <sys/mman.h>\n#endif\n"
    assert unguarded(guarded) == []
    assert unguarded(guarded + "#include <unistd.h>\n") == ["unistd.h"]
    assert unguarded("#if defined(__x86_64__)\n#include <sys/mman.h>\n#endif\n") == ["sys/mman.h"]


def test_both_systems_implement_every_platform_function():
    signature = re.compile(r"^(?:uint8_t\*|void|int|bool) (\w+)\(", re.MULTILINE)
    declared = signature.findall((NATIVE / "machine" / "system.h").read_text())
    assert len(declared) >= 5
    for name in ROOM:
        public = re.sub(r"^namespace \{.*?^\}  // namespace$", "", (NATIVE / name).read_text(), flags=re.S | re.M)
        assert sorted(signature.findall(public)) == sorted(declared)


def test_cross_compile_has_the_flags_of_the_build():
    script = (ROOT / "scripts" / "windows").read_text()
    assert os.access(ROOT / "scripts" / "windows", os.X_OK)
    subprocess.run(["sh", "-n", ROOT / "scripts" / "windows"], check=True)
    build = (NATIVE / "CMakeLists.txt").read_text()
    wide = re.search(r"set\(avx512 (.*)\)", build)[1]
    assert f'avx512="{wide}"' in script
    levels = {
        name: flags.replace("${avx512}", "$avx512")
        for name, flags in re.findall(r'woolly_level\((\w+) "\$\{\w+\}" (.*)\)', build)
    }
    assert {"avx2", "avxvnni", "avx512f", "avx512", "amx", "neon", "neon_i8mm"} == set(levels)
    for name, flags in levels.items():
        assert f'{name}) echo "{flags}"' in script
    for flag in ("-Wall", "-Wextra", "-Werror", "-Wconversion", "-Wshadow", "-ffp-contract=off"):
        assert flag in build
        assert flag in script


def differing_modules():
    """Modules of the standard library whose types ask which system it is."""
    stubs = Path(importlib.util.find_spec("mypy").origin).parent / "typeshed" / "stdlib"
    asking = [path.relative_to(stubs) for path in stubs.rglob("*.pyi") if "sys.platform" in path.read_text()]
    return {path.parts[0].removesuffix(".pyi") for path in asking}


def imports(path):
    """The modules that a file imports, by the first part of their names."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {one.name for node in nodes if isinstance(node, ast.Import) for one in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in names}


@pytest.fixture(scope="module")
def errors_on(tmp_path_factory):
    """The errors of types on a system, of files that import what differs between systems. Others are not read.

    All files, with the types of those that they import, take 98 s of processor time for each system.
    """
    differing = differing_modules()
    assert {"os", "signal", "fcntl", "msvcrt"} <= differing and "json" not in differing
    listed = tmp_path_factory.mktemp("platforms") / "files"
    found = [path for path in sorted((ROOT / "woolly").rglob("*.py")) if imports(path) & differing]
    listed.write_text("\n".join(str(path.relative_to(ROOT)) for path in found))

    @functools.cache
    def errors_of(system):
        cache = ROOT / ".mypy_cache" / f"few-{system}"  # mypy forgets the results of another system in the same folder
        options = ["--platform", system, "--cache-dir", cache, "--follow-imports", "skip", f"@{listed}"]
        done = subprocess.run([sys.executable, "-m", "mypy", *options], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode in (0, 1) and "source files" in done.stdout, done.stdout + done.stderr
        return {line for line in done.stdout.splitlines() if ": error: " in line}

    return errors_of


@pytest.mark.rare  # 16 s of processor time for each of three systems
@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_types_check_for_untested_systems(system, errors_on):
    """A function that a system lacks is an error of types; what is not known of other files is one on this system, too.

    `scripts/test` checks all files for this system.
    """
    assert errors_on(system) - errors_on(sys.platform) == set()
