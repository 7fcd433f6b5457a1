"""Attention of the CPU alone, one thread: this tree's kernels, in turn with those of another checkout if one is named.

    python -m benchmarks.attention --level neon
    python -m benchmarks.attention --level avx512f --before path/to/checkout

The best of all rounds counts: on a busy machine the median says more of its neighbours.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512F = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", *AVX2]
LEVELS = {"neon": ["-march=armv8.2-a+dotprod"], "avx2": AVX2, "avx512f": AVX512F}
# As native/CMakeLists.txt has them.
FLAGS = ["-std=c++20", "-O3", "-DNDEBUG", "-ffp-contract=off"]
FLAGS += ["-fno-schedule-insns", "-frename-registers", "-fno-optimize-strlen"]

Figures = dict[tuple[str, str, str], tuple[float, float, str]]


def build(native: Path, level: str, folder: Path, name: str) -> Path:
    """The program with the attention of one level of a `native` folder."""
    compiler, program = os.environ.get("CXX", "c++"), folder / name
    target = native / "cpu/kernels/targets" / f"{level}.cpp"
    part = ["-DWOOLLY_ONLY", "-DWOOLLY_ONLY_rows", f"-I{native}", "-c", str(target), "-o", f"{program}.o"]
    subprocess.run([compiler, *FLAGS, *LEVELS[level], *part], check=True)
    whole = [f"-DROWS=k_{level}_rows", f"-I{native}", str(HERE / "attention.cpp"), f"{program}.o", "-o", str(program)]
    subprocess.run([compiler, "-std=c++20", "-O2", *whole], check=True)
    return program


def best(programs: list[Path], rounds: int) -> list[Figures]:
    """The best figures of each program by type, width of heads and queries; programs take turns."""
    found: list[Figures] = [{} for _ in programs]
    for _ in range(rounds):
        for figures, program in zip(found, programs, strict=True):
            for line in subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout.splitlines():
                kind, dim, queries, products, bandwidth, bits = line.split()
                key, now = (kind, dim, queries), (float(products), float(bandwidth), bits)
                figures[key] = max(now, figures.get(key, now))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", choices=list(LEVELS), required=True)
    parser.add_argument("--before", type=Path, help="another checkout of Woolly")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trees = [HERE.parent] if options.before is None else [options.before, HERE.parent]
        programs = [build(tree / "native", options.level, Path(folder), str(i)) for i, tree in enumerate(trees)]
        found = best(programs, options.rounds)
    print("cache, heads of, queries: billions of products per second, GB of cache per second")
    for key in found[0]:
        rates = "   ".join(f"{figures[key][0]:6.2f} {figures[key][1]:5.2f}" for figures in found)
        same = "" if found[0][key][2] == found[-1][key][2] else "   OTHER BITS"
        print(f"{key[0]:5} {key[1]:>4} {key[2]:>4}: {rates}{same}")


if __name__ == "__main__":
    main()
