"""The largest logits of a row, found by native/gpu: what NumPy finds, and the tokens that samplers choose."""

import numpy as np
import pytest

from tests.cases.tiny import TINY, write_tiny
from tests.runtime.cuda.test_async_ranks import PARAMS, pick
from tests.runtime.cuda.test_rank import expected, random_rows
from woolly import LLM, SamplingParams
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.runtime import PICK, AsyncRanks, Batch, Options
from woolly.runtime.gpu.batch import BATCH
from woolly.runtime.vulkan.device import VulkanDevice
from woolly.runtime.vulkan.top_k import KeyRanker
from woolly.sampling.sampler import Sampler


@pytest.fixture
def device(opened):
    device = VulkanDevice(opened._shared, 120.0, is_first=False)
    yield device
    device.close()


def placed(device, *arrays):
    places = [device.allocate(array.nbytes) for array in arrays]
    for place, array in zip(places, arrays, strict=True):
        device.upload(place, array)
    return places


def ranked(device, rows, n):
    rows, batch = np.ascontiguousarray(rows, np.float32), np.zeros(1, BATCH)
    batch["n_output"] = len(rows)
    heads = KeyRanker(device, *placed(device, batch, rows), rows.shape[1], len(rows)).queue(n, len(rows))
    device.wait()
    return heads.copy()


@pytest.mark.parametrize(("width", "n"), [(5, 1), (5, 40), (1024, 256), (9000, 1), (9000, 40), (20000, 256)])
def test_largest_come_first_and_ties_by_id(width, n, device):
    rows = random_rows(3, width)
    rows[2, ::2] = -0.0
    rows[2, 1::2] = 0.0
    for row, head in zip(rows, ranked(device, rows, n), strict=True):
        places = expected(row, len(head["ids"]))
        assert min(n, width) <= len(places) and head["is_sound"] and np.isnan(head["sum"])
        np.testing.assert_array_equal(head["ids"], places)
        np.testing.assert_array_equal(head["logits"].view(np.uint32), row[places].view(np.uint32))


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf])
def test_non_finite_row_is_reported_only_for_itself(bad, device):
    rows = random_rows(40, 1500)  # more than are ranked at a time
    rows[35, 1499] = bad
    assert np.flatnonzero(ranked(device, rows, 64)["is_sound"] == 0).tolist() == [35]


def test_async_run_takes_the_sampled_tokens(device):
    n_rows, width = 40, 320
    rows = np.random.RandomState(1).standard_normal((n_rows, width)).astype(np.float32) * 3
    samplers = [Sampler(SamplingParams(seed=i, **PARAMS[i % len(PARAMS)])) for i in range(n_rows)]
    order = np.random.RandomState(2).permutation(n_rows)  # of the rows in the batch that follows
    picks = np.array([pick(samplers[i].device_chain, i) for i in order], PICK)
    batch, tokens = np.zeros(1, BATCH), np.zeros(n_rows, np.int32)
    batch["n_rows"] = batch["n_output"] = n_rows
    places = placed(device, batch, rows, tokens, picks)
    ranker = KeyRanker(device, places[0], places[1], width, n_rows)
    ranker.queue(64, n_rows)
    batch["tokens"] = places[2]
    device.upload(places[0], batch)
    ranker.feed(places[3], n_rows)
    device.download(places[2], tokens)
    device.wait()
    assert tokens.tolist() == [samplers[i].next(rows[i]).token for i in order]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny(TINY["llama"], tmp_path_factory.mktemp("rank") / "tiny.gguf")


def test_program_ranks_its_logits(tiny, vulkan):
    with open_gguf(tiny) as file:
        program = vulkan.compile(trace(file), file.tensors, Options(max_rows=64))
        assert isinstance(program, AsyncRanks)
        batch = Batch.of([(range(7), 0, [0]), ([9, 8], 0, [1])], [2, 6, 8])
        whole = program.run(batch, state := program.new_state(2)).copy()
        ranking = program.rank(batch, state, 40)
        for row, ids in zip(whole, ranking.ids, strict=True):
            np.testing.assert_array_equal(ids, expected(row, len(ids)))
        np.testing.assert_array_equal(ranking.rows(1, 3), whole[1:3])


def test_answers_and_logprobs_match_the_cpu(tiny, vulkan, monkeypatch):
    ways = ({"temperature": 0, "n": 2}, {"seed": 4, "logprobs": 2}, {"seed": 5, "top_k": 0})
    asked, found = [SamplingParams(max_tokens=4, ignore_eos=True, **way) for way in ways], []
    for device in ("cpu", None):
        if device is None:
            monkeypatch.setattr("woolly.engine.loading.load.get_backend", lambda *_: vulkan)
        with LLM(tiny, ctx=64, threads=1, speculation=None, device=device) as llm:
            answers = [llm.generate([5, 6, 7], params) for params in asked]
            found.append([(one.token_ids, one.logprobs, [other.token_ids for other in one.others]) for one in answers])
    assert found[0] == found[1]
