"""The largest logits of a row, found on the emulated GPU: what NumPy finds, and the same whatever the batch."""

import numpy as np
import pytest

from tests.cases.tiny import TINY, write_tiny
from tests.runtime.cuda.emulated import EmulatedDevice, source
from tests.runtime.cuda.harness import BATCH
from woolly.errors import PlanError
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.runtime import Batch, Options, Ranks
from woolly.runtime.cuda.backend import CudaBackend
from woolly.runtime.gpu.top_k import Ranker


@pytest.fixture(scope="module")
def device():
    device = EmulatedDevice(source("rank"))
    yield device
    device.close()


def ranked(device, rows, n):
    """The result of the kernels for rows of logits."""
    rows = np.ascontiguousarray(rows, np.float32)
    batch = np.zeros(1, BATCH)
    batch["n_output"] = len(rows)
    places = [device.allocate(array.nbytes) for array in (batch, rows)]
    for place, array in zip(places, (batch, rows), strict=True):
        device.upload(place, array)
    ranker = Ranker(device, *places, rows.shape[1], len(rows))
    return ranker.queue(n, len(rows)).copy()


def expected(row, n):
    """Places of the n largest; NumPy's stable sort leaves equal ones in their order."""
    return np.argsort(-row, kind="stable")[:n]


def random_rows(n_rows, width):
    rows = np.random.RandomState(width).standard_normal((n_rows, width)).astype(np.float32) * 4
    rows[0] = np.round(rows[0])  # many equal ones
    rows[1, width // 3 :] = -np.inf
    return rows


@pytest.mark.parametrize("width", [5, 320, 4096, 9000])
@pytest.mark.parametrize("n", [1, 40, 256])
def test_largest_come_first_and_ties_by_id(width, n, device):
    rows = random_rows(3, width)
    heads = ranked(device, rows, n)
    for row, head in zip(rows, heads, strict=True):
        places = expected(row, len(head["ids"]))
        assert min(n, width) <= len(places)
        np.testing.assert_array_equal(head["ids"], places)
        np.testing.assert_array_equal(head["logits"].view(np.uint32), row[places].view(np.uint32))
        assert head["is_sound"]
        total = np.exp(row.astype(np.float64) - row.max()).sum()
        assert head["sum"] == pytest.approx(total, rel=1e-13)


def test_equal_steps_launch_with_the_same_arguments(device, monkeypatch):
    """A device keeps what it made of each tuple: new ones with each token would add up."""
    seen, launch = [], device.launch
    monkeypatch.setattr(device, "launch", lambda *given: (seen.append(given[4]), launch(*given))[1])
    batch, rows = np.zeros(1, BATCH), random_rows(2, 320)
    batch["n_output"] = 2
    places = [device.allocate(array.nbytes) for array in (batch, rows)]
    for place, array in zip(places, (batch, rows), strict=True):
        device.upload(place, array)
    ranker = Ranker(device, *places, 320, 2)
    for _ in range(3):
        ranker.queue(40, 2)
    assert len(seen) == 6 and len(set(map(id, seen))) == 2


def test_rows_that_defeat_the_bound_are_ranked_too(device):
    """The largest lie side by side, or at the threads of one warp, or are all equal; zeros have two signs."""
    width = 9000
    rows = np.zeros((4, width), np.float32)
    rows[0, 4000:4600] = np.arange(600)
    rows[1, np.arange(0, 4096, 512)] = 5
    rows[1, 1 + np.arange(0, 8192, 512)] = np.arange(16)
    rows[3, ::2] = -0.0
    heads = ranked(device, rows, 256)
    for row, head in zip(rows, heads, strict=True):
        np.testing.assert_array_equal(head["ids"], expected(row, 256))


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf])
def test_non_finite_row_is_reported_only_for_itself(bad, device):
    rows = random_rows(3, 5000)
    rows[1, 4999] = bad
    assert ranked(device, rows, 64)["is_sound"].tolist() == [1, 0, 1]


def test_row_has_the_same_bits_in_every_batch_and_for_every_n(device):
    rows = random_rows(130, 4100)  # more than are ranked at a time
    together = ranked(device, rows, 1)
    for i in (0, 1, 127, 128, 129):
        alone = ranked(device, rows[i : i + 1], 64)[0]
        assert alone["sum"].tobytes() == together[i]["sum"].tobytes()
        assert alone["ids"][0] == together[i]["ids"][0]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    with open_gguf(write_tiny(TINY["llama"], tmp_path_factory.mktemp("rank") / "tiny.gguf")) as file:
        program = CudaBackend(EmulatedDevice).compile(trace(file), file.tensors, Options(max_rows=64))
        yield program
        program.close()


def test_program_ranks_its_logits(program):
    assert isinstance(program, Ranks)
    batch = Batch.of([(range(7), 0, [0]), ([9, 8], 0, [1])], [2, 6, 8])
    whole = program.run(batch, state := program.new_state(2)).copy()
    ranking = program.rank(batch, state, 40)
    for row, ids, logits in zip(whole, ranking.ids, ranking.logits, strict=True):
        places = expected(row, len(ids))
        np.testing.assert_array_equal(ids, places)
        np.testing.assert_array_equal(logits, row[places])
    np.testing.assert_array_equal(ranking.rows(1, 3), whole[1:3])
    halted = program.run(batch, state, 0, 3)
    assert len(halted) == 9
    with pytest.raises(PlanError, match="another run"):
        ranking.rows(0, 1)
    np.testing.assert_array_equal(program.rank(batch, state, 1, 3).ids[:, 0], whole.argmax(axis=1))


def test_host_may_work_after_queueing(program, monkeypatch):
    batch, state, log = Batch.of([(range(7), 0, [0])]), program.new_state(1), []
    device, wait = program._core.device, program._core.device.wait
    monkeypatch.setattr(device, "wait", lambda: log.append("wait") or wait())
    program.rank(batch, state, 40, meanwhile=lambda: log.append("meanwhile"))
    assert log[-2:] == ["meanwhile", "wait"] and log.count("meanwhile") == 1


def test_batch_without_output_has_no_rows_to_rank(program):
    batch = Batch.of([([1, 2], 0, [0])], np.zeros(0, np.int32))
    assert program.rank(batch, program.new_state(1), 40).ids.shape[0] == 0
