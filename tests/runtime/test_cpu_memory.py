"""No memory is asked for while tokens are computed: all of it is set aside when a model is loaded."""

import ctypes
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.cases.tiny import TINY, write_tiny
from woolly import _native
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.quant import GGMLType
from woolly.runtime import Batch, Options
from woolly.runtime.cpu import CpuBackend

# Stands before the C library's own functions and counts how often any thread calls them.
COUNTER = """
#include <stddef.h>
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
static long n;
long allocations(void) { return __atomic_load_n(&n, __ATOMIC_SEQ_CST); }
#define COUNT __atomic_add_fetch(&n, 1, __ATOMIC_SEQ_CST)
void *malloc(size_t size) { COUNT; return __libc_malloc(size); }
void *calloc(size_t count, size_t size) { COUNT; return __libc_calloc(count, size); }
void *realloc(void *p, size_t size) { COUNT; return __libc_realloc(p, size); }
void *aligned_alloc(size_t to, size_t size) { COUNT; return __libc_memalign(to, size); }
int posix_memalign(void **p, size_t to, size_t size) { COUNT; *p = __libc_memalign(to, size); return *p ? 0 : 12; }
"""


def count(folder: str) -> None:
    """Run in a process of its own: prints what native runs of several sizes asked for."""
    allocations = ctypes.CDLL(None).allocations
    before = allocations()
    _native.Program(_native.kernel_levels()[0], 1, 1, 64, 128)
    assert allocations() > before  # it does count, and native code's own
    for n_layers in (1, 6):
        tiny = replace(TINY["llama"], n_layers=n_layers, type=GGMLType.Q8_0)
        with open_gguf(write_tiny(tiny, Path(folder) / f"{n_layers}.gguf")) as file:
            program = CpuBackend().compile(trace(file), file.tensors, Options(threads=2))
            state = program.new_state(16)
            program.run(Batch.of([(np.arange(64), 0, range(4))], [63]), state)  # packs the weights
            for parts in ([1], [1, 1, 1, 1], [64], [30, 1, 1]):
                batch = Batch.of([(np.arange(n), 64, range(4 * i, 4 * i + 8)) for i, n in enumerate(parts)], [0])
                for name in ("tokens", "positions", "offsets", "pages", "output_rows"):
                    assert getattr(batch, name).flags.c_contiguous
                arguments = (state.native, batch.tokens, batch.positions, batch.offsets, batch.pages)
                tables = (
                    batch.output_rows,
                    program._rope_tables.cosines,
                    program._rope_tables.sines,
                    0,
                    len(program.running_plan.steps),
                )
                before = allocations()
                for _ in range(10):
                    assert program._native.run(*arguments, *tables)
                print(n_layers, *parts, ":", (allocations() - before) / 10)


@pytest.mark.skipif(sys.platform != "linux", reason="counts by way of glibc")
@pytest.mark.skipif("WOOLLY_SANITIZER" in os.environ, reason="a sanitizer has an allocator of its own")
def test_run_allocates_no_memory_for_any_layers_and_rows(tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler is installed")
    (tmp_path / "counter.c").write_text(COUNTER)
    library = tmp_path / "counter.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", tmp_path / "counter.c", "-o", library], check=True)
    code = f"from tests.runtime.test_cpu_memory import count; count({str(tmp_path)!r})"
    said = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert said.returncode == 0, said.stderr
    counts = [float(line.split(":")[1]) for line in said.stdout.splitlines()]
    assert len(counts) == 8
    assert not any(counts), said.stdout
