"""The store of responses: what it counts, and how a body refers to its items."""

import pytest

from woolly.serving.dialects.responses.store import ResponseStore
from woolly.serving.errors import ApiError


def keep(store, id, *ids, owner="me", text="x"):
    items = [{"type": "message", "id": one, "text": f"{text} of {id}"} for one in ids]
    store.keep(owner, {"id": id, "output": [{"type": "message", "id": f"out_{id}"}]}, items, None)


def refer(store, *ids, owner="me"):
    return store.resolved(owner, [{"type": "item_reference", "id": id} for id in ids])


def test_references_find_the_latest_item_of_their_owner_until_dropped():
    store = ResponseStore(most=2)
    keep(store, "one", "a", "b", "a")
    keep(store, "two", "a")
    keep(store, "other", "a", owner="you")  # forgets "one"
    assert [item["text"] for item in refer(store, "a")] == ["x of two"]
    assert refer(store, "out_two")[0]["id"] == "out_two" and refer(store, "a", owner="you")[0]["text"] == "x of other"
    for id, owner in (("b", "me"), ("out_one", "me"), ("out_two", "you")):
        with pytest.raises(ApiError, match="send the item itself"):
            refer(store, id, owner=owner)
    store.delete("me", "two")
    store.delete("you", "other")
    assert len(store) == store.n_bytes == 0 and not store._items


def test_item_of_two_responses_outlives_the_later_one():
    store = ResponseStore()
    keep(store, "one", "a")
    keep(store, "two", "a")
    store.delete("me", "two")
    assert refer(store, "a")[0]["text"] == "x of one"


def test_non_string_ids_are_stored_and_cannot_be_referenced():
    store = ResponseStore()
    keep(store, "one", None, ["a"], {"b": 1}, 3)
    with pytest.raises(ApiError):
        refer(store, "3")
    store.delete("me", "one")


def test_item_references_are_unique_and_limited():
    store = ResponseStore()
    keep(store, "one", "a")
    with pytest.raises(ApiError, match="twice"):
        refer(store, "a", "a")
    with pytest.raises(ApiError, match="but got 5000"):
        refer(store, *map(str, range(5000)))


def test_reference_reads_no_other_item():
    class Item(dict):
        n_read = 0

        def __getitem__(self, key):
            Item.n_read += 1
            return super().__getitem__(key)

    store = ResponseStore()
    items = [Item(type="message", id=str(i)) for i in range(3000)]
    store.keep("me", {"id": "one", "output": []}, items, None)
    Item.n_read = 0
    assert refer(store, *map(str, range(3000))) == items and Item.n_read == 0


def test_bytes_are_counted_not_characters():
    store = ResponseStore(max_bytes=3000)
    keep(store, "plain", "a", text="x" * 1000)
    n_plain = store.n_bytes
    keep(store, "wide", "a", text="\N{SHEEP}" * 1000)  # 4 bytes each: more than all that may be kept
    assert 1000 < n_plain < 3000 and len(store) == 1
    keep(store, "broken", "b", text="\ud800")
    assert len(store) == 2


def test_owner_cannot_evict_responses_of_another():
    store = ResponseStore(most=10, max_bytes=100_000)
    keep(store, "mine", "a", owner="me")
    for i in range(50):
        keep(store, f"theirs{i}", "a", owner="you")
    assert store.ended("me", "mine") and len(store) == 10
    for i in range(3):  # by bytes: the third time there is no room for all
        keep(store, f"large{i}", "b", owner="you", text="x" * 40_000)
    assert store.ended("me", "mine") and store.ended("you", "large2") and store.n_bytes <= 100_000
    for i in range(20):  # who comes later gets an equal share, and no more
        keep(store, f"again{i}", "a", owner="me")
    kept = [id for id in (f"again{i}" for i in range(20)) if id in store._kept]
    assert kept == [f"again{i}" for i in range(20 - len(kept), 20)] and len(kept) >= 5
    for id in list(store._kept):
        store.delete("me" if id.startswith(("mine", "again")) else "you", id)
    assert store.n_bytes == 0 and not store._kept._order and not store._kept._sizes and not store._items
