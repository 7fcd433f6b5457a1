"""Slots of recurrent state: blank, in use, or idle snapshots that the prefix index finds."""

import pytest

from woolly.cache.pages import PagePool
from woolly.cache.slots import SlotPool

DIGESTS = [bytes([i]) * 20 for i in range(8)]


@pytest.fixture
def pools():
    """Eight pages in one chain, and four slots."""
    pages = PagePool(8, needs_state=True)
    taken = pages.take(8)
    for i, page in enumerate(taken):
        pages.index.add(page, DIGESTS[i - 1] if i else b"", DIGESTS[i], [i] * 32)
    pages.give_back(taken)
    return pages, SlotPool(4, pages.index)


def snapshot(pools, i):
    pages, slots = pools
    slot = slots.take()
    assert pages.index.save(DIGESTS[i], slot)
    slots.give_back(slot)
    return slot


def test_pages_are_found_up_to_the_last_one_with_a_state(pools):
    pages, _ = pools
    assert pages.index.find(DIGESTS) == []
    snapshot(pools, 2)
    assert len(pages.index.find(DIGESTS)) == 3
    assert len(pages.index.find(DIGESTS[:6])) == 3
    assert len(pages.index.find(DIGESTS[:2])) == 0
    snapshot(pools, 7)
    assert len(pages.index.find(DIGESTS)) == 8
    assert len(pages.index.known(DIGESTS[:6])) == 6


def test_lru_snapshot_is_evicted_and_those_in_use_never(pools):
    pages, slots = pools
    first, second, third = (snapshot(pools, i) for i in range(3))
    slots.share(first)  # used again: now the second is the oldest
    slots.give_back(first)
    slots.share(third)
    assert slots.take() not in (first, second, third)  # a blank one comes first
    assert slots.take() == second
    assert slots.take() == first
    with pytest.raises(ValueError, match="all 4 slots are in use"):
        slots.take()
    assert pages.index.state_after(DIGESTS[2]) == third
    assert pages.index.state_after(DIGESTS[1]) is None


def test_page_has_one_snapshot_and_slot_one_snapshot(pools):
    pages, slots = pools
    slot = snapshot(pools, 2)
    other = slots.take()
    assert not pages.index.save(DIGESTS[2], other)
    assert not pages.index.save(DIGESTS[3], slot)
    assert not pages.index.save(b"unknown", other)
    slots.give_back(other)
    assert (len(slots._idle), slots.n_free) == (1, 4)


def test_evicted_page_frees_its_snapshot_after_its_last_user(pools):
    pages, slots = pools
    snapshot(pools, 7)
    used = snapshot(pools, 6)
    slots.share(used)
    pages.take(2)  # the last pages of the chain go first
    assert (len(slots._idle), slots.n_free) == (0, 3)
    slots.give_back(used)
    assert (len(slots._idle), slots.n_free) == (0, 4)


def test_unused_snapshot_is_discarded(pools):
    _, slots = pools
    slot = snapshot(pools, 1)
    slots.share(slot)
    slots.discard(slot)
    slots.give_back(slot)
    assert len(slots._idle) == 1
    slots.discard(slot)
    assert (len(slots._idle), slots.n_free) == (0, 4)


def test_miss_report_names_the_missing_state(pools):
    pages, slots = pools
    tokens = [t for i in range(8) for t in [i] * 32] + [9]
    assert pages.index.report(tokens, DIGESTS, 0, True).reason == "unsaved at token 256"
    snapshot(pools, 3)
    assert pages.index.report(tokens, DIGESTS, 4, True).reason == "unsaved at token 256"
    for _ in range(4):
        slots.take()
    assert pages.index.report(tokens, DIGESTS, 0, True).reason == "evicted"
