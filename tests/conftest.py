"""Shared fixtures: the real model, the order of tests, and checks for leftovers."""

import gc
import logging
import math
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from threadpoolctl import threadpool_limits

from tests.cases.slow import SLOW, SLOWEST
from tests.cases.tiny import TINY, write_tiny
from woolly import LLM, store
from woolly.engine.drafts.speculation_budget import SpeculationBudget
from woolly.engine.request import Request
from woolly.errors import StoreError

# The same examples on every machine, and as much time for each as a busy machine takes.
hypothesis.settings.register_profile(
    "steady",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("steady")

ROOT = Path(__file__).resolve().parent.parent


def _wants_gpu(config: pytest.Config) -> bool:
    return "gpu" in config.option.markexpr.replace("not gpu", "")


def _hide_gpus() -> None:
    """Leaves Vulkan only the device that a CPU stands in for, which is never chosen unasked, and CUDA none."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if sys.platform == "linux":
        found = [str(path) for path in Path("/usr/share/vulkan/icd.d").glob("lvp_icd*.json")]
        for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"):  # the second is what old loaders read
            os.environ[name] = ":".join(found) or "none"
        os.environ["WOOLLY_VULKAN_DRIVER"] = "libvulkan.so.1"  # no driver's own library, which the loader does not open


def pytest_configure(config: pytest.Config) -> None:
    """Hides GPUs from all tests but those of GPUs: what others expect is of the CPU, which a machine with both has.

    Lets files be handed out in the order of `pytest_collection_modifyitems`.
    """
    if not _wants_gpu(config):
        _hide_gpus()
    # Threads of NumPy's matrix products wait by spinning, and those of the processes that share the tests take each
    # other's cores: with one thread, the reference computes a tiny RWKV in an eighth of the processor time.
    threadpool_limits(1, user_api="blas")
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False  # xdist would begin with the files of the most tests
    for plugin in config.pluginmanager.get_plugins():
        if type(plugin).__name__ == "WorkerInteractor":
            _say_less(plugin)


def _say_less(worker: Any) -> None:
    """Lets a process that shares the tests send two messages of a test that passes, not six.

    xdist sends each beginning and end, and what came of setting up and of taking down; nobody reads these unless they
    fail or take long. They were 1.4 of the 5 ms of processor time that an empty test takes in both processes.
    """
    send = worker.sendevent

    def sendevent(name: str, **words: Any) -> None:
        report = words.get("data", {})
        is_part = name == "testreport" and report["when"] != "call" and report["outcome"] == "passed"
        if name not in ("logstart", "logfinish") and not (is_part and report["duration"] < 0.1):
            send(name, **words)

    worker.sendevent = sendevent


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than cores: they wait for servers, browsers and clocks.

    Two processes on two cores used 41 of the 52 minutes of processor time that a run of 26 minutes had.
    """
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return n_cores + 1


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collects tests without the garbage collector, and takes them out of its later rounds.

    They are a million objects that stay until the end: a third of the time of collecting went into looking at them, and
    so did a good part of each `gc.collect()` of a test.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Lets each of the processes that share the tests begin with other folders.

    The first to come to a file rewrites its assertions and keeps the result on the disk. Of a fresh clone that takes 21
    of the 37 seconds of collecting, in each process if all go through the files in one order.
    """
    report = yield
    if isinstance(collector, (pytest.Session, pytest.Directory)) and report.passed:
        worker, n_workers = (os.environ.get(f"PYTEST_XDIST_WORKER{end}", "") for end in ("", "_COUNT"))
        first = len(report.result) * int(worker[2:]) // int(n_workers) if worker else 0
        report.result = [*report.result[first:], *report.result[:first]]
    return report


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skips slow files before they are imported: to collect them takes longer than many tests."""
    is_slow = collection_path.is_relative_to(ROOT) and collection_path.relative_to(ROOT).as_posix() in SLOW
    return True if is_slow and config.option.markexpr == "not slow" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the tests of `SLOW`, leaves out those of GPUs, and orders files: the longest first, then by their names.

    A whole run leaves out the rare ones too; in it, an entry without a test is an error.
    """
    others = [] if _wants_gpu(config) else [item for item in items if item.get_closest_marker("gpu")]
    if not config.option.file_or_dir and "rare" not in config.option.markexpr:
        others += [item for item in items if item.get_closest_marker("rare")]
    if others:
        config.hook.pytest_deselected(items=others)
        gone = set(others)
        items[:] = [item for item in items if item not in gone]
    names = {item: item.nodeid for item in items}  # made anew at each access
    ranks = {name: rank for rank, name in enumerate(SLOWEST)}
    files = {item: name.partition("::")[0] for item, name in names.items()}
    items.sort(key=lambda item: (ranks.get(files[item], len(ranks)), files[item]))
    unused, slow = {*SLOW, *SLOWEST}, pytest.mark.slow
    entries: dict[str, list[str]] = {}  # by file: 17,000 tests are not compared with each of 130 entries
    for item, name in names.items():
        file = files[item]
        if file not in entries:
            entries[file] = [entry for entry in SLOW if file.startswith(entry) or entry.startswith(f"{file}::")]
            unused.discard(file)
        found = [entry for entry in entries[file] if name.startswith(entry)]
        if found:
            item.add_marker(slow)
            unused.difference_update(found)
    chosen = (config.option.file_or_dir, config.option.keyword, config.option.markexpr, config.option.ignore)
    if unused and not any((*chosen, getattr(config.option, "lf", False))):
        left = ", ".join(sorted(unused))
        raise pytest.UsageError(f"tests/cases/slow.py: SLOW or SLOWEST names what is not there: {left}")


class FreeDrafts:
    """In place of `DraftCost`: guesses cost nothing."""

    def is_due(self, n_answers: int) -> bool:
        return False

    def is_settled(self, n_answers: int) -> bool:
        return True

    def share(self, n_answers: int) -> float:
        return 0.0

    def plain(self, n_answers: int) -> float | None:
        return None

    def guessed(self, n_guesses: int, seconds: float) -> None:
        pass

    def stepped(self, n_answers: int, n_guesses: int, seconds: float) -> None:
        pass


class UnlimitedBudget(SpeculationBudget):
    """A budget that is never exhausted."""

    def available_seconds(self, request: Request) -> float:
        return math.inf

    def max_prefill_tokens(self, request: Request) -> int:
        return 1 << 30


@pytest.fixture(scope="session", autouse=True)
def _steady() -> Iterator[None]:
    """Draws the same seed for every request of this process that names none, whichever thread asks first.

    A tiny random model may end its answer at any token: what a test asserts of it must not depend on the draw.
    Nor must it depend on a slow disk: what is closed has time to write. Nor on what a guess costs: a step of a tiny
    model takes less time than one.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("woolly.sampling.seeds.randbits", lambda n_bits: 20 % 2**n_bits)
        patch.setattr("woolly.engine.drafts.speculation.DraftCost", FreeDrafts)
        patch.setattr("woolly.engine.drafts.speculation.SpeculationBudget", UnlimitedBudget)
        patch.setattr("woolly.cache.disk_tier._FLUSHING", 120.0)
        yield


@pytest.fixture(autouse=True)
def _same_logs() -> Iterator[None]:
    """Undoes what a command did to the log when it ran inside of a test: others look at what is logged."""
    loggers = [logging.getLogger(name) for name in ("woolly", "uvicorn.error", "uvicorn.access")]
    before = [(list(logger.handlers), logger.propagate, logger.level) for logger in loggers]
    yield
    for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Returns the path of the real default model, pulled once into the user's cache.

    If it is not available, tests that need it are skipped with the reason; with CI=true they fail.
    """
    try:
        return store.pull("smollm2")
    except StoreError as error:
        reason = f"the real model is not available: {error}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the path of a tiny random model of the architecture `llama`; no test changes the file."""
    return write_tiny(TINY["llama"], tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="module")
def tiny_llm(tiny_model: Path) -> Iterator[LLM]:
    """Yields the tiny model, opened once per module; a test makes its own `Engine` over its program."""
    with LLM(tiny_model, ctx=512) as llm:
        yield llm
