"""Everything that one GPU of Vulkan or Metal can be asked, as a report: `scripts/gpu everything` writes it.

All kernels are compiled; every case of the case table and tiny models of all architectures must have the bits of the
cpu backend; models that are named are timed on the GPU and on the CPU.
"""

from __future__ import annotations

import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import numpy as np

import woolly
from tests.cases.attention import FOUR_BITS, PAIRS, TILED
from tests.cases.compressed_attention import COMPRESSIONS
from tests.cases.families import FAMILIES
from tests.cases.indexer import CHOICES
from tests.cases.ops import run
from tests.cases.running import RUNNING
from tests.cases.scans import ALL
from tests.cases.tiny import write_tiny
from woolly.errors import UnsupportedError
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.runtime import BACKENDS, Batch, Options, get_backend, pages_for
from woolly.runtime.gpu import probe
from woolly.runtime.gpu.backend import GpuBackend
from woolly.runtime.vulkan import cooperative_matrix
from woolly.runtime.vulkan.kernel_archive import open_archive
from woolly.runtime.vulkan.ops import attention

CASES = ALL | FOUR_BITS | PAIRS | CHOICES | COMPRESSIONS | RUNNING
TOKENS = np.random.RandomState(7).randint(0, 264, 70)
PROMPT, ANSWER = 512, 32  # tokens that are timed
MAX_LINES = 40  # of failures of one kind


class Report:
    """Lines of a report, printed as they come."""

    def __init__(self, show: Callable[[str], None] = print) -> None:
        self.lines: list[str] = []
        self.n_failed = 0
        self._show = show

    def say(self, line: str) -> None:
        """Adds a line."""
        self.lines.append(line)
        self._show(line)

    def ring(self, what: str, checks: Iterator[tuple[str, Callable[[], None]]]) -> None:
        """Runs checks; says how many there were, how many were refused by name, and which failed."""
        n, failed, refused, start = 0, list[str](), 0, time.monotonic()
        for name, check in checks:
            n += 1
            try:
                check()
            except UnsupportedError:
                refused += 1
            except Exception as error:  # every failure is reported, and the rest still runs
                failed.append(f"- {name}: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
        seconds = time.monotonic() - start
        self.say(f"{what}: {n} tried, {refused} refused by name, {len(failed)} failed, {seconds:.1f} s")
        for line in failed[:MAX_LINES]:
            self.say(line)
        if len(failed) > MAX_LINES:
            self.say(f"- and {len(failed) - MAX_LINES} more")
        self.n_failed += len(failed)


class _Opened(GpuBackend):
    """A backend whose programs share an open GPU."""

    def __init__(self, kind: str, device: Any) -> None:
        super().__init__(lambda *_: device.new_stream(), lambda: device.level)
        self.name = kind


def everything(
    kind: str, device: Any, models: Sequence[Path], report: Report, prefixes: tuple[str, ...] = ("",)
) -> None:
    """Reports on an open GPU: kernels, cases and tiny models whose names begin so, and models."""
    free, total = device.memory()
    report.say(f"## {kind}: {device.name}")
    report.say(
        f"Woolly {woolly.__version__}, {platform.platform()}, {platform.machine()}, Python {platform.python_version()}"
    )
    report.say(
        f"driver: {device.driver}; {free / 1e9:.1f} GB free of {total / 1e9:.1f} GB; matrices: {device.architecture}"
    )
    found, wanted = probe.results(device)
    for name, mine, its in zip(probe.NAMES, found, wanted, strict=True):
        report.say(f"probe of {name}: {np.count_nonzero(mine != its)} of {len(its)} differ")
    variant = "metal" if kind == "metal" else device._shared.variant
    names = [
        name for name in open_archive().names(variant) if device.architecture or name not in cooperative_matrix.KERNELS
    ]
    report.ring("kernels compiled", ((name, partial(device.prepare, name, 0)) for name in names))
    backend = _Opened(kind, device)
    chosen = [name for name in CASES if name.startswith(prefixes)]
    report.ring("cases", ((name, partial(_case, backend, name)) for name in chosen))
    tiled = [name for name in (*TILED, *FOUR_BITS) if name.startswith(prefixes)]
    report.ring("tiles of queries", ((name, partial(_tiled, backend, name)) for name in tiled))
    tiny = [name for name in FAMILIES if name.startswith(prefixes)]
    report.ring("tiny models", ((name, partial(_tiny, backend, name)) for name in tiny))
    for path in models:
        report.ring(f"{path.name}, bits", iter([(path.name, partial(_model, backend, path, report))]))


def _same(found: np.ndarray, wanted: np.ndarray) -> None:
    n = int(np.count_nonzero(found.view(np.uint32) != wanted.view(np.uint32)))
    assert n == 0, f"{n} of {found.size} numbers differ, by at most {np.abs(found - wanted).max():g}"


def _case(backend: GpuBackend, name: str) -> None:
    case = CASES[name]
    with tempfile.TemporaryDirectory() as folder, case.open(Path(folder)) as file:
        plan, options = case.plan(file), Options(kv_type=case.kv_type, threads=1)
        found = run(case, backend.compile(plan, file.tensors, options))
        _same(found, run(case, get_backend("cpu").compile(plan, file.tensors, options)))


def _tiled(backend: GpuBackend, name: str) -> None:
    """A case by the kernels of more rows than it has."""
    with patch.multiple(attention, _MIN_TILED_ROWS=16, _MIN_SEQUENCE_ROWS=0):
        _case(backend, name)


def _logits(program: Any, chunks: Sequence[int]) -> np.ndarray:
    state, parts, first = program.new_state(4, 2), [], 0
    for i, n in enumerate(chunks):
        slots = (i % 2 if i else -1, (i + 1) % 2)
        batch = Batch.of([(TOKENS[first : first + n], first, [2, 0, 3])], range(n), slots=[slots])
        parts.append(program.run(batch, state).copy())
        first += n
    return np.concatenate(parts)


def _tiny(backend: GpuBackend, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write_tiny(FAMILIES[name], Path(folder) / "tiny.gguf")
        with open_gguf(path) as file:
            plan, options = trace(file), Options(kv_type="f16", threads=1)
            programs = [one.compile(plan, file.tensors, options) for one in (backend, get_backend("cpu"))]
            _same(_logits(programs[0], [60, 1, 9]), _logits(programs[1], [70]))


def _model(backend: GpuBackend, path: Path, report: Report) -> None:
    """Times a model on both, and compares what they computed."""
    with open_gguf(path) as file:
        plan, rows = trace(file), []
        tokens = np.random.RandomState(3).randint(0, min(30000, plan.n_tokens), PROMPT + ANSWER)
        for one in (backend, get_backend("cpu")):
            program = one.compile(plan, file.tensors, Options(max_rows=PROMPT))
            program.load_weights()
            rows.append(_timed(program, tokens, f"{path.name} on {program.about.place}", report))
        _same(*rows)


def _timed(program: Any, tokens: np.ndarray, what: str, report: Report) -> np.ndarray:
    pages = range(pages_for(len(tokens)))
    state, times, rows = program.new_state(len(pages)), [], []
    program.run(Batch.of([(tokens[:PROMPT], 0, pages)], [PROMPT - 1]), state)  # the first run prepares
    for first, last in ((0, PROMPT), *((i, i + 1) for i in range(PROMPT, len(tokens)))):
        start = time.perf_counter()
        rows.append(program.run(Batch.of([(tokens[first:last], first, pages)], [last - first - 1]), state).copy())
        times.append(time.perf_counter() - start)
    each = 1 / statistics.median(times[4:])
    report.say(f"{what}: prompt of {PROMPT} {PROMPT / times[0]:,.0f} tokens/s, generation {each:,.1f} tokens/s")
    return np.concatenate(rows)


def on_this_machine(models: Sequence[Path], out: Path, prefixes: tuple[str, ...] = ("",)) -> int:
    """Reports on the first GPU of each kind, into a file; 1 if something failed or there is no GPU."""
    report, n_gpus = Report(), 0
    for kind in ("metal", "vulkan"):
        try:
            device: Any = cast(GpuBackend, BACKENDS[kind]()).open()
        except Exception as error:  # what a driver does is not known here
            report.say(f"## {kind}: {error}")
            continue
        n_gpus += 1
        try:
            everything(kind, device, models, report, prefixes)
        finally:
            device.close()
    report.say(f"{report.n_failed} failures in all" if n_gpus else "no GPU was tried")
    out.write_text("\n".join(report.lines) + "\n")
    print(f"please send {out}")
    return int(bool(report.n_failed or not n_gpus))


def text_of_metal(prefixes: tuple[str, ...]) -> int:
    """Report for Metal's source compiled as C++, without a Mac; all kernels take some minutes to compile."""
    from tests.runtime.metal.fake import FakeMetal
    from tests.runtime.metal.text import build, texts
    from woolly.runtime.metal.device import open_device

    known, report = texts(), Report()
    device = open_device(driver=FakeMetal(build(known), {text: name for name, text in known.items()}))
    try:
        everything("metal", device, (), report, prefixes or ("",))
    finally:
        device.close()
    return int(bool(report.n_failed))
