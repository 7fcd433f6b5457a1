"""A program on the emulated GPU: graphs, ranges of steps, faults. The protocol itself is tested for every backend."""

import gc
import threading
from dataclasses import replace

import numpy as np
import pytest

from tests.cases.mtp import MTP, RAW, opened_guesses
from tests.cases.ops import expected, run
from tests.cases.scans import ALL
from tests.cases.tiny import write_tiny
from tests.runtime.cuda.emulated import EmulatedDevice
from woolly.errors import DeviceError, RequestError
from woolly.gguf import Tensor, open_gguf
from woolly.models import trace, trace_draft
from woolly.runtime import BACKENDS, Batch, Options
from woolly.runtime.cuda.backend import CudaBackend
from woolly.runtime.gpu import graph_runner, loader


class Watched(EmulatedDevice):
    """Counts what is asked of it, and fails when it is to."""

    def __init__(self):
        super().__init__()
        self.n_replays = self.n_captures = self.n_waits = 0
        self.fault = None

    def capture(self, queue):
        self.n_captures += 1
        return super().capture(queue)

    def replay(self, graph):
        self.n_replays += 1
        super().replay(graph)

    def wait(self):
        self.n_waits += 1
        if self.fault:
            raise self.fault


class Opened:
    """A case's file, its program and the device below it."""

    def __init__(self, name, folder, **options):
        self.case = ALL[name]
        self.file = self.case.open(folder)
        self.device = Watched()
        self.options = {"kv_type": self.case.kv_type, "max_rows": 64} | options
        self.program = CudaBackend(lambda: self.device).compile(
            self.case.plan(self.file), self.file.tensors, Options(**self.options)
        )

    def logits(self):
        return run(self.case, self.program)


def test_draft_without_hidden_states_is_rejected(tmp_path):
    with open_gguf(write_tiny(MTP["glm4moe"], tmp_path / "tiny.gguf")) as file:
        plan = trace(file)
        plan = replace(plan, draft=trace_draft(file, plan))
        whole = CudaBackend(EmulatedDevice).compile(plan, file.tensors, Options(max_rows=8))
        batch = Batch.of([([1, 2], 0, [0])])
        width = plan.values[plan.steps[0].output].width
        with pytest.raises(ValueError, match=f"no hidden states of {width} columns"):
            whole.draft.run(batch, whole.draft.new_state(1))
        whole.close()


@pytest.mark.parametrize("name", RAW)
def test_block_that_reads_unnormalized_rows_drafts(name, tmp_path, monkeypatch):
    monkeypatch.setitem(BACKENDS, "cuda", lambda: CudaBackend(EmulatedDevice))
    path = write_tiny(RAW[name], tmp_path / "tiny.gguf")
    found, wanted = (opened_guesses(path, backend, "f32") for backend in ("cuda", "reference"))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())


@pytest.fixture
def opened(tmp_path):
    made = []

    def get(name, **options):
        made.append(Opened(name, tmp_path, **options))
        return made[-1]

    yield get
    for one in made:
        one.program.close()
        one.file.close()


@pytest.mark.parametrize("name", ["rms_norm-33x2", "add-17", "output_rows-17", "attend-16-f32-group1-adjacent"])
def test_program_matches_the_reference_with_and_without_graphs(name, opened, monkeypatch):
    one = opened(name)
    want, bound = expected(one.case, one.file)
    got = one.logits()
    assert (np.abs(got.astype(np.float64) - want) <= bound).all()
    assert one.device.n_replays == len(one.case.batches()) > 0
    monkeypatch.setattr(graph_runner, "_MAX_GRAPH_ROWS", 0)
    assert np.array_equal(one.logits(), got)
    assert one.device.n_replays == len(one.case.batches())


def test_one_graph_serves_all_batches_of_a_bucket_and_old_ones_are_dropped(opened, monkeypatch):
    monkeypatch.setattr(graph_runner, "_MAX_GRAPHS", 2)
    one = opened("add-17")
    state = one.program.new_state(4, 8)

    def count(n_rows):
        one.program.run(Batch.of([(range(n_rows), 0, [0, 1])]), state)
        return one.device.n_captures, len(one.device._graphs)

    assert count(5) == (1, 1)
    assert count(8) == (1, 1)
    assert count(9) == (2, 2)
    assert count(4) == (3, 2)
    assert count(9) == (3, 2)
    assert count(5) == (4, 2)


def test_batch_without_output_gives_no_rows(opened):
    one = opened("output_rows-17")
    batch = Batch.of([([1, 2, 3], 0, [0])], np.zeros(0, np.int32))
    assert one.program.run(batch, one.program.new_state(4)).shape == (0, 17)


def test_weights_are_staged_piece_by_piece(opened, monkeypatch):
    monkeypatch.setattr(loader, "_STAGED", 1000)
    one = opened("linears-F32-5x52")
    want, bound = expected(one.case, one.file)
    assert (np.abs(one.logits().astype(np.float64) - want) <= bound).all()


def test_interrupted_loading_is_resumed_by_the_next_run(opened):
    one = opened("rms_norm-33x2")
    one.program.load_weights()
    one.program.close()
    want, bound = expected(one.case, one.file)
    assert (np.abs(one.logits().astype(np.float64) - want) <= bound).all()
    assert one.program.weight_stats().n_bytes > 0 and one.program.weight_stats().misses == 0


def test_unreadable_file_fails_the_run_and_not_the_process(opened, monkeypatch):
    one = opened("embed-Q8_0-96")

    def broken(self):
        raise OSError("the disk is gone")

    monkeypatch.setattr(Tensor, "data", property(broken))
    for _ in range(2):
        with pytest.raises(OSError, match="the disk is gone"):
            one.logits()


def test_lost_gpu_fails_each_run_with_its_error(opened):
    one = opened("add-17")
    one.logits()
    one.device.fault = DeviceError("the GPU failed: an illegal memory access", code="lost")
    for _ in range(2):
        with pytest.raises(DeviceError, match="illegal memory access"):
            one.logits()


def test_weights_over_the_budget_are_rejected_and_the_device_is_released(opened, tmp_path):
    with pytest.raises(RequestError, match="which keeps all or none") as caught:
        opened("rms_norm-33x2", weight_memory=10)
    assert caught.value.field == "weight_memory"


def test_requested_device_is_opened(opened, tmp_path):
    one, numbers = opened("add-17"), []

    def open_numbered(*number):
        numbers.append(number)
        return EmulatedDevice()

    for device in (None, "cuda", "cuda:3"):
        CudaBackend(open_numbered).compile(one.program.plan, one.file.tensors, Options(device=device))
    assert numbers == [(), (0,), (3,)]
    for device in ("cpu", "cuda:0,1"):
        with pytest.raises(RequestError, match=f"device is '{device}', but must be a single GPU here"):
            CudaBackend(open_numbered).compile(one.program.plan, one.file.tensors, Options(device=device))


def test_memory_is_freed_with_the_last_reference(opened):
    one = opened("attend-16-f32-group1-adjacent")
    one.logits()
    state = one.program.new_state(4)
    assert one.device._sizes
    one.program = CudaBackend(EmulatedDevice).compile(one.program.plan, one.file.tensors, Options())
    gc.collect()
    assert not one.device._sizes
    del state
    gc.collect()  # what the device no longer has is not given back again


def test_program_dropped_while_loading_stops_that_before_freeing_memory(opened, monkeypatch):
    begun, may_go_on, left = threading.Event(), threading.Event(), []
    upload, close, before = Watched.upload, Watched.close, {*threading.enumerate()}

    def slow(self, *copied):
        begun.set()
        may_go_on.wait(60)
        upload(self, *copied)

    def watched(self):
        if self._is_first:
            left.append([t.name for t in {*threading.enumerate()} - before if t.name.startswith("woolly-upload")])
        close(self)

    monkeypatch.setattr(Watched, "upload", slow)
    monkeypatch.setattr(Watched, "close", watched)
    one = opened("rms_norm-33x2")
    one.program.load_weights()
    assert begun.wait(60)
    threading.Timer(0.1, may_go_on.set).start()
    one.program = CudaBackend(EmulatedDevice).compile(one.program.plan, one.file.tensors, Options())
    gc.collect()
    assert left == [[]]


def test_programs_run_from_several_threads_take_turns(opened):
    one = opened("add-17")
    want, got = one.logits(), {}
    state = one.program.new_state(4, 8)
    batches = one.case.batches()
    alone = [one.program.run(batch, state).copy() for batch in batches]

    def work(i):
        # The view may be overwritten by another thread at once: only that all runs end is asked for.
        got[i] = one.program.run(batches[i], state).shape

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(batches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [got[i] for i in range(len(batches))] == [value.shape for value in alone]
    assert np.array_equal(np.concatenate(alone), want)
