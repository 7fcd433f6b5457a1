"""A batch comes to the device as it is, and one that kernels would leave their memory for is refused."""

from dataclasses import replace

import numpy as np
import pytest

from tests.cases.batches import MAX_ROWS, N_PAGES, TWO, each_bad_batch
from tests.cases.tiny import TINY, write_tiny
from woolly.errors import RequestError
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.runtime import Batch
from woolly.runtime.gpu.batch import BATCH, BatchSlot
from woolly.runtime.gpu.batch_checks import check_batch, is_apart
from woolly.runtime.gpu.device import Address
from woolly.runtime.rope_tables import RopeTables
from woolly.runtime.weight_views import WeightViews


class Memory:
    """A device of plain memory."""

    def __init__(self):
        self.pieces = {}
        self.end = 256

    def allocate(self, n_bytes):
        self.pieces[self.end] = np.zeros(n_bytes, np.uint8)
        self.end += -(-n_bytes // 256 + 1) * 256
        return Address(self.end - (-(-n_bytes // 256 + 1) * 256))

    def free(self, address):
        del self.pieces[int(address)]

    def _piece(self, address, n_bytes):
        start = max(at for at in self.pieces if at <= address)
        assert address - start + n_bytes <= len(self.pieces[start])
        return self.pieces[start][address - start : address - start + n_bytes]

    def upload(self, address, data):
        self._piece(int(address), data.nbytes)[:] = data.reshape(-1).view(np.uint8)

    send = upload

    def pinned(self, n_bytes):
        return np.empty(n_bytes, np.uint8)

    def read(self, address, like):
        return self._piece(int(address), like.nbytes).view(like.dtype).reshape(like.shape)


class Pages:
    n_pages, n_slots = N_PAGES, 3
    window_pages = ()

    def entries(self, tables):
        self.tables = tables
        return np.arange(len(tables) * 4, dtype=np.uint64)

    def slots(self):
        return np.array([7, 8], np.uint64)


@pytest.fixture(scope="module")
def plan_and_views(tmp_path_factory):
    with open_gguf(write_tiny(TINY["llama"], tmp_path_factory.mktemp("batch") / "tiny.gguf")) as file:
        yield trace(file), WeightViews(file.tensors)


@pytest.mark.parametrize("max_pages", [1, 70_000])
def test_every_array_is_where_the_struct_says(plan_and_views, max_pages):
    plan, views = plan_and_views
    memory, pages = Memory(), np.full((2, max_pages), -1, np.int32)
    pages[:, 0] = 2, 1
    rope_tables = RopeTables(plan, views)
    slot = BatchSlot(memory, rope_tables)
    batch = replace(TWO, pages=pages, adapters=np.ones((2, 3), np.float32), hidden=np.ones((6, 5), np.float32))
    for _ in range(2):
        state = Pages()
        slot.fill(batch, state, plan)
        struct = memory.read(slot.address, np.zeros(1, BATCH))[0]
        assert [struct[n] for n in ("n_rows", "n_sequences", "n_output", "max_pages")] == [6, 2, 2, max_pages]
        assert [struct[n] for n in ("n_snapshots", "n_adapters", "max_length")] == [0, 3, 4]
        for name in ("tokens", "positions", "offsets", "output_rows", "adapters", "hidden"):
            assert np.array_equal(memory.read(struct[name], getattr(batch, name)), getattr(batch, name)), name
        assert memory.read(struct["sequences"], batch.tokens).tolist() == [0, 0, 0, 0, 1, 1]
        assert np.array_equal(memory.read(state.tables[0], pages), pages)
        assert memory.read(struct["entries"], np.zeros(4, np.uint64)).tolist() == [0, 1, 2, 3]
        assert memory.read(struct["slots"], np.zeros(2, np.uint64)).tolist() == [7, 8]
        assert struct["slots_in"] == struct["snapshots"] == 0
        assert np.array_equal(memory.read(struct["cosines"], rope_tables.cosines), rope_tables.cosines)


def test_equal_batches_reuse_the_layout(plan_and_views):
    plan, views = plan_and_views
    memory, state = Memory(), Pages()
    slot = BatchSlot(memory, RopeTables(plan, views))
    for token, position, page in ((5, 7, 1), (9, 8, 2)):
        slot.fill(Batch.of([([token], position, [page])]), state, plan)
        struct = memory.read(slot.address, np.zeros(1, BATCH))[0]
        assert struct["max_length"] == position + 1
        for name, value in (("tokens", token), ("positions", position), ("sequences", 0), ("output_rows", 0)):
            assert memory.read(struct[name], np.zeros(1, np.int32)).tolist() == [value], name
        assert memory.read(struct["offsets"], np.zeros(2, np.int32)).tolist() == [0, 1]
        assert memory.read(state.tables[0], np.zeros(1, np.int32)).tolist() == [page]


def test_failed_allocation_leaves_the_previous_batch_unchanged(plan_and_views):
    plan, views = plan_and_views
    memory, state = Memory(), Pages()
    slot = BatchSlot(memory, RopeTables(plan, views))
    few, many = (replace(TWO, pages=np.full((2, n), 1, np.int32)) for n in (70_000, 200_000))
    slot.fill(few, state, plan)
    allocate = memory.allocate

    def full(n_bytes):
        raise RequestError("the GPU has too little free memory")

    memory.allocate = full
    with pytest.raises(RequestError):
        slot.fill(many, state, plan)
    slot.fill(few, state, plan)  # still where its struct says
    struct = memory.read(slot.address, np.zeros(1, BATCH))[0]
    assert np.array_equal(memory.read(struct["tokens"], few.tokens), few.tokens)
    memory.allocate = allocate
    n_pieces = len(memory.pieces)
    slot.fill(many, state, plan)
    assert np.array_equal(memory.read(state.tables[0], many.pages), many.pages)
    assert len(memory.pieces) == n_pieces


def test_rope_tables_grow_with_the_positions(plan_and_views):
    plan, views = plan_and_views
    memory, rope_tables = Memory(), RopeTables(plan, views)
    slot = BatchSlot(memory, rope_tables)
    slot.fill(TWO, Pages(), plan)
    n_pieces = len(memory.pieces)
    slot.fill(Batch.of([([1], 1000, range(32))]), Pages(), plan)
    struct = memory.read(slot.address, np.zeros(1, BATCH))[0]
    assert len(rope_tables.sines) > 1000 and np.array_equal(
        memory.read(struct["sines"], rope_tables.sines), rope_tables.sines
    )
    assert len(memory.pieces) == n_pieces  # the smaller tables are given back


@each_bad_batch
def test_mismatched_batch_is_rejected(changes, message, plan_and_views):
    check_batch(TWO, plan_and_views[0], Pages(), MAX_ROWS)
    with pytest.raises(ValueError, match=message):
        check_batch(replace(TWO, **changes), plan_and_views[0], Pages(), MAX_ROWS)


def test_batch_without_the_hidden_states_of_a_draft_is_rejected(plan_and_views):
    states = np.ones((6, 5), np.float32)
    check_batch(replace(TWO, hidden=states), plan_and_views[0], Pages(), MAX_ROWS, hidden_width=5)
    for hidden in (None, states[:, :4]):
        with pytest.raises(ValueError, match="the batch has no hidden states of 5 columns"):
            check_batch(replace(TWO, hidden=hidden), plan_and_views[0], Pages(), MAX_ROWS, hidden_width=5)


def test_sequences_are_independent_unless_one_sees_a_page_written_for_another():
    def rows(*parts):
        return Batch.of([([1] * n, first, pages) for n, first, pages in parts])

    assert is_apart(rows((1, 40, [3, 4])))
    assert is_apart(rows((1, 40, [0, 1]), (1, 70, [0, 2, 3, 9]), (1, 0, [4])))  # pages that both read, and one to come
    assert not is_apart(rows((2, 40, [0, 1])))
    assert not is_apart(rows((1, 40, [0, 1]), (2, 0, [2])))
    assert not is_apart(rows((1, 40, [0, 1]), (1, 70, [0, 1, 3])))
    assert not is_apart(rows((1, 40, [0, 1]), (1, 41, [0, 1]), (1, 0, [2])))  # two rows of one page
    batch = rows((1, 40, [0, 1]), (1, 33, [2, 3]))
    assert is_apart(replace(batch, window_pages=np.array([[[-1, 0], [-1, 1]]], np.int32)))
    assert not is_apart(replace(batch, window_pages=np.array([[[-1, 0], [0, 1]]], np.int32)))
