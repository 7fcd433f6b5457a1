"""Every backend keeps the protocol of runtime/program.py, one that is added by a single line of the table included."""

import itertools
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from tests.cases.tiny import TINY, write_tiny
from tests.runtime.cuda.emulated import EmulatedDevice
from woolly import LLM, SamplingParams
from woolly.errors import DeviceError, PlanError, RequestError
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.plan.passes import layer_split_points
from woolly.runtime import BACKENDS, Batch, CancelledRun, Options, get_backend, pages_for
from woolly.runtime.cpu import CpuBackend
from woolly.runtime.cuda import CudaBackend
from woolly.runtime.reference import ReferenceBackend
from woolly.runtime.split import Segment, SplitProgram
from woolly.runtime.vulkan import VulkanBackend
from woolly.runtime.vulkan.auto_selection import LEVEL
from woolly.runtime.vulkan.device import open_device

IDS = np.random.RandomState(4).randint(0, 264, 36).tolist()
BATCH = Batch.of([(IDS, 0, range(pages_for(len(IDS))))], [0, 33, 35])


class SecondBackend(ReferenceBackend):
    """Minimal backend folder: a backend with a name and its own program."""

    name = "second"

    def compile(self, plan, tensors, options):
        program = super().compile(plan, tensors, options)
        program.about = replace(program.about, backend=self.name)
        return program


class HalvesBackend(CpuBackend):
    """Two parts of a plan, as a GPU and the CPU would share it, and the head for the first of them."""

    name = "halves"

    def compile(self, plan, tensors, options):
        def half(own):
            return CpuBackend().compile(own, tensors, options)

        edges = [0, *list(layer_split_points(plan).values())[1:], len(plan.steps) - 3, len(plan.steps)]
        segments = [Segment(i % 2, *edge) for i, edge in enumerate(itertools.pairwise(edges))]
        program = SplitProgram(plan, segments, [half, half])
        program.about = replace(program.about, backend=self.name)
        return program


@pytest.fixture(autouse=True)
def second(monkeypatch):
    monkeypatch.setitem(BACKENDS, "second", SecondBackend)  # the one line
    monkeypatch.setitem(BACKENDS, "halves", HalvesBackend)
    monkeypatch.setitem(
        BACKENDS, "cuda", lambda: CudaBackend(EmulatedDevice, lambda: f"sm_{EmulatedDevice.architecture}")
    )
    # The CPU that stands in for a GPU counts here.
    monkeypatch.setitem(BACKENDS, "vulkan", lambda: VulkanBackend(level=lambda: LEVEL))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = write_tiny(TINY["llama"], tmp_path_factory.mktemp("protocol") / "tiny.gguf")
    with open_gguf(path) as opened:
        yield opened


# Metal needs a Mac, or kernels of its own compiled as C++: tests/runtime/metal has a model of those.
@pytest.fixture(params=[name for name in (*BACKENDS, "second", "halves") if name != "metal"])
def backend(request, second):
    if request.param == "vulkan":
        try:
            open_device().close()
        except DeviceError as error:
            pytest.skip(str(error))
    return get_backend(request.param)


@pytest.fixture
def program(backend, file):
    program = backend.compile(trace(file), file.tensors, Options(threads=1, max_rows=128))
    yield program
    program.close()


def run(program, first=0, last=None, state=None):
    return program.run(BATCH, state or program.new_state(3), first, last).copy()


def test_backend_and_program_describe_themselves(backend, program, file):
    assert BACKENDS[backend.name]().name == program.about.backend == backend.name
    assert backend.is_available()
    assert program.about.level in backend.levels if backend.levels else program.about.level is None
    assert program.about.threads == 1 and program.about.arena_bytes >= 0
    assert program.plan == trace(file) and program.max_rows == 128
    assert program.running_plan.n_tokens == program.plan.n_tokens


def test_state_has_pages_of_one_size(program):
    one, three = program.new_state(1), program.new_state(3)
    assert (one.n_pages, three.n_pages) == (1, 3)
    assert one.n_bytes == one.page_bytes == three.page_bytes > 0
    assert three.n_bytes == 3 * one.page_bytes


def test_logits_match_the_reference_wherever_a_run_stops(program, file):
    wanted = run(get_backend("reference").compile(trace(file), file.tensors, Options()))
    whole = run(program)
    assert whole.shape == (3, program.plan.width) and whole.dtype == np.float32
    np.testing.assert_allclose(whole, wanted, atol=0.02 * np.abs(wanted).max())
    state, n = program.new_state(3), len(program.running_plan.steps)
    for step in range(n):
        last = run(program, step, step + 1, state)
    assert np.array_equal(last, whole)


def test_weights_may_be_loaded_ahead_and_their_reads_are_counted(program):
    before = program.weight_stats()
    whole = run(program)
    after = program.weight_stats()
    assert after.hits + after.misses > before.hits + before.misses
    program.load_weights()
    program.close()
    assert np.array_equal(run(program), whole)


def test_times_are_recorded_only_inside_the_context_for_executed_steps(program):
    state, n = program.new_state(3), len(program.running_plan.steps)
    run(program, state=state)
    start = time.perf_counter_ns()
    with program.timed() as times:
        run(program, 0, n // 2, state)
        assert times == []
    assert 0 < sum(times[: n // 2]) <= time.perf_counter_ns() - start
    assert len(times) == n and not any(times[n // 2 :])
    with program.timed() as times:
        pass
    assert not any(times)


def test_cancel_stops_a_run_and_not_the_next(program):
    whole, stop = run(program), threading.Event()

    def cancel():
        while not stop.is_set():
            program.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    try:
        deadline = time.monotonic() + 60
        with pytest.raises(CancelledRun):
            while time.monotonic() < deadline:
                run(program)
    finally:
        stop.set()
        thread.join()
    assert np.array_equal(run(program), whole)


def test_state_or_option_of_another_backend_is_rejected(backend, program, file):
    class Foreign:
        n_pages, page_bytes, n_bytes = 3, 1, 3

    with pytest.raises(PlanError, match="new_state"):
        program.run(BATCH, Foreign())
    with pytest.raises(RequestError, match="nonsense"):
        backend.compile(trace(file), file.tensors, Options(level="nonsense"))


def test_llm_runs_on_a_named_backend(file):
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    with LLM(file.path, backend="second", ctx=64) as second, LLM(file.path, backend="reference", ctx=64) as reference:
        assert second.engine.program.about.backend == "second"
        assert second.generate("sheep", params).token_ids == reference.generate("sheep", params).token_ids
        with pytest.raises(RequestError, match="choose auto or one of: cpu, cuda, halves, metal, reference, second"):
            get_backend("third")
