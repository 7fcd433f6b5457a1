"""Slots of a batch: what a run reads, writes and keeps of each sequence."""

import pytest

from woolly.runtime import Batch

TWO = [([1, 2], 0, [0]), ([3], 4, [1])]


def test_batch_names_a_slot_to_read_and_one_to_write_per_sequence():
    batch = Batch.of(TWO, slots=[(-1, 3), (0, 2)], snapshots=[(1, 4)])
    batch.check_slots(5)
    assert batch.slots_in.tolist() == [-1, 0]
    assert batch.slots_out.tolist() == [3, 2]
    assert batch.snapshots.tolist() == [[1, 4]]
    assert Batch.of(TWO).snapshots.shape == (0, 2)


@pytest.mark.parametrize(
    ("slots", "snapshots", "sentence"),
    [
        (None, (), "2 slots to read and to write"),
        ([(-1, 1)], (), "2 slots to read and to write"),
        ([(-1, 1), (1, 2)], (), "or write a slot that it reads"),
        ([(-1, 1), (0, 1)], (), "twice"),
        ([(-1, 1), (0, 2)], [(0, 2)], "twice"),
        ([(-1, 1), (0, 2)], [(0, 0)], "or write a slot that it reads"),
        ([(-1, 1), (0, 5)], (), "outside the state"),
        ([(-1, -1), (0, 2)], (), "outside the state"),
        ([(-1, 1), (-2, 2)], (), "outside the state"),
        ([(-1, 1), (0, 2)], [(3, 3)], "a row outside the batch"),
        ([(0, 1), (3, 2)], (), "exactly if its first position is 0"),
        ([(-1, 1), (-1, 2)], (), "exactly if its first position is 0"),
    ],
)
def test_mismatched_slots_are_rejected(slots, snapshots, sentence):
    with pytest.raises(ValueError, match=sentence):
        Batch.of(TWO, slots=slots, snapshots=snapshots).check_slots(5)
