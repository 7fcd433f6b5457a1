"""Threads, cancelling, forks and memory: a program is a good guest in its process."""

import gc
import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.cases.families import FAMILIES
from tests.cases.tiny import TINY, write_tiny
from woolly.errors import RequestError
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.runtime import Batch, Options
from woolly.runtime.cpu import CpuBackend

ROOT = Path(__file__).resolve().parents[2]
TOKENS = np.random.RandomState(2).randint(0, 264, 300).tolist()
PROMPT = Batch.of([(TOKENS, 0, range(10))])
MANY = 4 * (os.cpu_count() or 1)  # the most threads that Options take
LINUX = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc of Linux")
# A sanitizer keeps freed memory to find its use, and has a thread of its own.
PLAIN = pytest.mark.skipif("WOOLLY_SANITIZER" in os.environ, reason="a sanitizer's own memory and threads would count")

# For work that hangs if it takes longer; unoptimized code with a sanitizer's checks beside others takes minutes.
PATIENCE = 900 if "WOOLLY_SANITIZER" in os.environ else 60


def compiled(folder, n_layers=2, threads=2):
    file = open_gguf(write_tiny(replace(TINY["llama"], n_layers=n_layers), folder / "tiny.gguf"))
    return CpuBackend().compile(trace(file), file.tensors, Options(threads=threads))


def threads():
    return {path.name for path in Path("/proc/self/task").iterdir()}


def until(holds, seconds=PATIENCE):
    """Wait until the condition holds; False after the time limit."""
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.001)
    return holds()


def in_time(work, seconds=PATIENCE):
    """Runs work in a thread of its own, so that a hang is a failure and not the end of all tests."""
    results = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert results, "the work hangs, or has raised"
    return results[0]


def test_run_is_cancelled_from_another_thread_and_the_next_one_works(tmp_path):
    program = compiled(tmp_path, n_layers=12)
    state = program.new_state(10)
    want = program.run(PROMPT, state).copy()

    def until_cancelled():
        while True:
            try:
                program.run(PROMPT, state)
            except RequestError as error:
                return str(error)

    runner = threading.Thread(target=lambda: results.append(until_cancelled()), daemon=True)
    results = []
    runner.start()
    deadline = time.monotonic() + PATIENCE
    while runner.is_alive() and time.monotonic() < deadline:
        program.cancel()
        time.sleep(0.003)
    assert results == ["the computation was cancelled"]
    np.testing.assert_array_equal(in_time(lambda: program.run(PROMPT, state)), want)


def test_workers_agree_on_where_a_cancelled_run_ends(tmp_path):
    program = compiled(tmp_path, n_layers=30)
    state, batch = program.new_state(1), Batch.of([(TOKENS[:1], 0, [0])])
    want = program.run(batch, state).copy()
    stop = threading.Event()

    def cancel():
        while not stop.is_set():
            program.cancel()
            time.sleep(2e-4)

    def many_runs():
        n_cancelled, end = 0, time.monotonic() + 1.5
        while time.monotonic() < end or (not n_cancelled and time.monotonic() < end + 50):
            try:
                np.testing.assert_array_equal(program.run(batch, state), want)
            except RequestError:
                n_cancelled += 1
        return n_cancelled

    canceller = threading.Thread(target=cancel)
    canceller.start()
    try:
        assert in_time(many_runs) > 0
    finally:
        stop.set()
        canceller.join()


def test_cancel_without_a_run_does_not_affect_the_next_run(tmp_path):
    program = compiled(tmp_path)
    program.cancel()
    assert np.isfinite(program.run(PROMPT, program.new_state(10))).all()


def test_python_threads_may_share_a_program(tmp_path):
    program = compiled(tmp_path)
    batches = [Batch.of([(TOKENS[i : i + 40], 0, [0, 1])]) for i in range(4)]
    # What `run` gives is a view that the next run overwrites, so only the cache tells them apart.
    want = [program.run(batch, program.new_state(2)).copy() for batch in batches]

    def work(i):
        state = program.new_state(2)
        for first in range(0, 39, 3):
            program.run(Batch.of([(TOKENS[i + first : i + first + 3], first, [0, 1])]), state)
        return state

    states = [None] * 4
    threads = [threading.Thread(target=lambda i=i: states.__setitem__(i, work(i))) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, state in enumerate(states):
        last = Batch.of([([TOKENS[i + 39]], 39, [0, 1])])
        np.testing.assert_array_equal(program.run(last, state), want[i])


def test_programs_in_several_threads_do_not_disturb_each_other(tmp_path):
    programs = [compiled(tmp_path) for _ in range(3)]
    want = programs[0].run(PROMPT, programs[0].new_state(10)).copy()
    results = [None] * 3

    def work(i):
        results[i] = [programs[i].run(PROMPT, programs[i].new_state(10)).copy() for _ in range(3)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        for logits in result:
            np.testing.assert_array_equal(logits, want)


def test_logits_outlive_the_program(tmp_path):
    program = compiled(tmp_path)
    logits = program.run(PROMPT, program.new_state(10))
    copy = logits.copy()
    del program
    gc.collect()
    np.testing.assert_array_equal(logits, copy)


@pytest.mark.parametrize("name", ["llama", "qwen3moe"])
def test_oversubscribed_threads_give_the_same_bits(name, tmp_path):
    with open_gguf(write_tiny(FAMILIES[name], tmp_path / "tiny.gguf")) as file:
        one, many = (CpuBackend().compile(trace(file), file.tensors, Options(threads=n)) for n in (1, MANY))
        prompt, row = Batch.of([(TOKENS[:40], 0, [0, 1])]), Batch.of([(TOKENS[40:41], 40, [0, 1])])
        state = one.new_state(2)
        want = [one.run(batch, state).copy() for batch in (prompt, row)]
        state = many.new_state(2)
        for _ in range(20):
            for batch, logits in zip((prompt, row), want, strict=True):
                np.testing.assert_array_equal(many.run(batch, state), logits)


REFUSED = """
import resource, sys
import numpy as np
from pathlib import Path
from tests.runtime.test_cpu_process import MANY, PROMPT, compiled
from woolly.errors import RequestError

program = compiled(Path(sys.argv[1]), threads=MANY)
state = program.new_state(10)
want = compiled(Path(sys.argv[1]), threads=1).run(PROMPT, state).copy()
before = resource.getrlimit(resource.RLIMIT_AS)
mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + (12 << 20), before[1]))  # a thread's stack takes 2 to 8 MB
for _ in range(2):
    try:
        program.run(PROMPT, state)
    except RequestError as error:
        print(error)
resource.setrlimit(resource.RLIMIT_AS, before)
assert np.array_equal(program.run(PROMPT, state), want)
"""


def run_script(script, folder, *arguments):
    command = [sys.executable, "-W", "ignore", "-c", script, str(folder), *arguments]
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.run(
        command, cwd=folder, env=environment, timeout=PATIENCE, check=False, capture_output=True, text=True
    )


@LINUX
@PLAIN
def test_thread_that_cannot_start_gives_a_one_line_error_and_the_next_run_works(tmp_path):
    done = run_script(REFUSED, tmp_path)
    assert done.returncode == 0, done.stderr
    sentence = rf"the system refuses to start thread \d+ of {MANY}; use fewer threads\n"
    assert re.fullmatch(sentence * 2, done.stdout)


FORK = """
import os, sys, threading, time
import numpy as np
from pathlib import Path
from tests.runtime.test_cpu_process import PROMPT, compiled

program = compiled(Path(sys.argv[1]), threads=3)
state = program.new_state(10)
want = program.run(PROMPT, state).copy()
child = os.fork()
if child == 0:
    code = 1
    try:
        # Threads of the child's own take the memory of those that stayed with the parent.
        others = [threading.Thread(target=time.sleep, args=(0.2,)) for _ in range(3)]
        for thread in others:
            thread.start()
        same = [np.array_equal(program.run(PROMPT, state), want) for _ in range(3)]
        for thread in others:
            thread.join()
        if "drop" in sys.argv:
            del program
        code = 0 if all(same) else 2
    finally:
        os._exit(code)
assert np.array_equal(program.run(PROMPT, state), want)
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.skipif(os.environ.get("WOOLLY_SANITIZER") == "thread", reason="TSan cannot start threads after a fork")
@pytest.mark.parametrize("way", ["keep", "drop"])
def test_forked_child_computes_with_its_own_threads(way, tmp_path):
    done = run_script(FORK, tmp_path, way)
    assert done.returncode == 0, done.stderr


@LINUX
@PLAIN
def test_programs_leave_no_threads_and_no_memory_behind(tmp_path):
    def one():
        program = compiled(tmp_path, threads=3)
        program.run(PROMPT, program.new_state(10))

    def pages():  # (virtual, resident)
        return np.array(Path("/proc/self/statm").read_text().split()[:2], int)

    for _ in range(5):
        one()
    gc.collect()
    own, before = threads(), pages()
    for _ in range(40):
        one()
    gc.collect()
    assert until(lambda: threads() <= own)  # the system may list a joined thread for a moment
    # One program maps 30 MB and touches 1 MB: 40 that stayed would show.
    virtual, resident = (pages() - before) * os.sysconf("SC_PAGE_SIZE")
    assert virtual < 200e6
    assert resident < 20e6


@LINUX
def test_program_has_the_requested_threads_after_its_first_run(tmp_path):
    program = compiled(tmp_path, threads=3)
    before = threads()
    program.run(PROMPT, program.new_state(10))
    own = threads() - before
    assert len(own) == 2  # the caller is the third
    program.run(PROMPT, program.new_state(10))
    assert threads() - before == own


@PLAIN
def test_idle_program_uses_no_cpu(tmp_path):
    program = compiled(tmp_path, threads=3)
    program.run(PROMPT, program.new_state(10))

    def is_at_rest():
        before = time.process_time()
        time.sleep(0.3)
        return time.process_time() - before < 0.1

    assert until(is_at_rest, seconds=60)  # a thread looks out for more work for a while before it sleeps
