"""The built native code: wide instructions only where they may be, primitives the same at every level."""

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from woolly import _native

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "native"

# Registers or instructions that the platform's oldest CPU lacks, and the namespaces whose functions may hold them.
X86, ARM = {"x86_64", "AMD64"}, {"aarch64", "arm64"}
MACHINE = platform.machine()
if MACHINE in X86:
    WIDE, ALL = re.compile(r"%[yz]mm\d|%k[0-7]\b|%tmm\d"), ("avx2", "avxvnni", "avx512f", "avx512", "amx")
else:
    WIDE, ALL = (
        re.compile(r"\t(sdot|udot|usdot|smmla|ummla|usmmla|bfdot|bfmmla|fmlal|whilelo|ptrue)\b"),
        ("neon", "neon_i8mm"),
    )
OURS = tuple(f"woolly::{level}" for level in ALL)
# The levels of this build that this machine can run: the best one, and others if WOOLLY_LEVELS asked for them.
LEVELS = [level for level in _native.kernel_levels() if level != "scalar"]


def archives():
    """The static libraries of the newest build, which are not stripped as the extension is."""
    built = [path for path in ROOT.glob("build/*/libwoolly_core.a") if not path.parent.name.startswith("sanitize-")]
    built.sort(key=lambda path: path.stat().st_mtime)
    return [built[-1], *built[-1].parent.glob("CMakeFiles/_native.dir/**/*.o")] if built else []


def functions(path):
    """(object, function, its disassembly), one after another."""
    command = ["objdump", "-d", "-C", "--no-show-raw-insn", str(path)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    member, name, lines = path.name, None, []
    for line in text.splitlines():
        if found := re.match(r"^(\S+):\s+file format", line):
            member = found[1]
        elif found := re.match(r"^[0-9a-f]+ <(.*)>:$", line):
            if name is not None:
                yield member, name, "\n".join(lines)
            name, lines = found[1], []
        else:
            lines.append(line)
    if name is not None:
        yield member, name, "\n".join(lines)


@pytest.fixture(scope="module")
def disassembly():
    if MACHINE not in X86 | ARM:
        pytest.skip(f"{MACHINE} has no levels but scalar")
    if shutil.which("objdump") is None:
        pytest.skip("objdump is not installed")
    if not archives():
        pytest.skip("the build folder is not here: Woolly was not built in this checkout")
    return [one for path in archives() for one in functions(path)]


def test_wide_instructions_stay_in_their_isa_namespaces(disassembly):
    leaks = [
        f"{member}: {name}: {WIDE.search(code)[0].strip()}"
        for member, name, code in disassembly
        if WIDE.search(code) and not any(level in name for level in OURS)
    ]
    assert not leaks


def test_search_finds_wide_instructions_in_isa_namespaces(disassembly):
    for level in LEVELS:
        code = [code for _, name, code in disassembly if f"woolly::{level}::" in name]
        assert any(WIDE.search(text) for text in code), f"no wide instruction in {level}"


def test_no_isa_specific_code_runs_at_import(disassembly):
    # A table filled at load time would run its level's instructions on every CPU.
    objects = {f"{level}.cpp.o" for level in (*LEVELS, "scalar")}
    found = [name for member, name, _ in disassembly if member in objects and "GLOBAL__sub_I" in name]
    assert not found
    assert objects <= {member for member, _, _ in disassembly}


# Flags of levels with primitives of their own, as native/CMakeLists.txt has them for the target.
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*(f"-mavx512{part}" for part in ("f", "bw", "dq", "vl", "vnni")), *AVX2]
FLAGS = {
    "neon": ["-march=armv8.2-a+dotprod"],
    "avx2": AVX2,
    "avxvnni": ["-mavxvnni", *AVX2],
    "avx512": AVX512,
}
# Whose primitives a level uses.
PRIMITIVES = {"neon": "NEON", "avx2": "AVX2", "avxvnni": "AVX2", "avx512": "AVX512"}

# What a level asks of the system before its first instruction; the library asks when it chooses the level.
NEEDS = {"amx": ["-DTEST_TILES"]}


def run_compiled(tmp_path, flags, *sources, plain=()):
    """Compile and run the sources, and return the output; `plain` are the flags of the last source."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler is installed")
    program = tmp_path / "program"
    command = [compiler, "-std=c++20", "-O1", "-ffp-contract=off", f"-I{NATIVE}", *flags]
    *others, last = (str(NATIVE / source) for source in sources)
    if plain:
        subprocess.run([*command, *plain, "-c", last, "-o", str(tmp_path / "plain.o")], check=True)
        last = str(tmp_path / "plain.o")
    subprocess.run([*command, *others, last, "-o", str(program)], check=True)
    done = subprocess.run([str(program)], cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout
    assert "DIFFERENT" not in done.stdout
    return done.stdout


def test_memory_and_threads(tmp_path):
    if not archives():
        pytest.skip("the build folder is not here: Woolly was not built in this checkout")
    assert "levels:" in run_compiled(tmp_path, ["-pthread"], "tests/test_platform.cpp", archives()[0])


@pytest.mark.parametrize("level", [level for level in _native.kernel_levels() if level in PRIMITIVES])
def test_primitives_match_the_scalar_ones(level, tmp_path):
    run_compiled(tmp_path, [f"-DTEST_{PRIMITIVES[level]}", *FLAGS[level]], "tests/test_primitives.cpp")


@pytest.mark.parametrize("level", _native.kernel_levels())
def test_many_rows_match_one_row(level, tmp_path):
    if not archives():
        pytest.skip("the build folder is not here: Woolly was not built in this checkout")
    flags = [f"-DTEST_LEVEL=k_{level}_level", *NEEDS.get(level, [])]
    said = run_compiled(tmp_path, flags, "tests/test_wide.cpp", archives()[0])
    assert f"{level}: {len(_native.types())} types, 0 different" in said


@pytest.mark.parametrize("level", _native.kernel_levels())
def test_batched_queries_match_single_ones_and_are_right(level, tmp_path):
    if not archives():
        pytest.skip("the build folder is not here: Woolly was not built in this checkout")
    flags = [f"-DTEST_LEVEL=k_{level}_level", *NEEDS.get(level, [])]
    said = run_compiled(tmp_path, flags, "tests/test_attention.cpp", archives()[0])
    assert f"{level}: 204 cases, 0 different, 0 wrong" in said


@pytest.mark.parametrize(("served_by", "types"), [pytest.param("PLANES", 15, marks=pytest.mark.rare), ("DOTS", 18)])
def test_many_row_kernels_match_one_row(tmp_path, served_by, types):
    # Kernels are not optimized, where -O1 takes 48 s to compile; what draws their input is. That kernels are always
    # inlined is a matter of speed, and a copy of them at each place took 15 s more: 14 s to compile and 5 s to run.
    flags = ["-DTEST_LEVEL=k_tiles_level", f"-DTEST_{served_by}", "-DTEST_COLUMNS=1280"]
    plain = ["-O0", "-Dalways_inline=noinline"]
    said = run_compiled(tmp_path, flags, "tests/test_wide.cpp", "quant/points.cpp", "tests/tiles.cpp", plain=plain)
    assert f"tiles: {types} types, 0 different" in said
