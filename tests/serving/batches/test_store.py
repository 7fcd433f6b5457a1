"""The store of files and batches: what it bounds, reads, refuses and sweeps."""

import os

import pytest

from woolly.serving.batches.store import BatchStore
from woolly.serving.errors import ApiError


def test_all_bytes_on_disk_count(tmp_path, monkeypatch):
    store = BatchStore(tmp_path, 20_000)
    with pytest.raises(ApiError, match="of 20000 bytes are used") as refused:
        for _ in range(1000):
            store.add_file("me", "rows.jsonl", "batch", b"")  # no content, but an object each
    assert refused.value.status == 413
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 20_000
    store.add_file("you", "rows.jsonl", "batch", b"")  # the room is each owner's own
    store = BatchStore(tmp_path / "more", 10**6)
    monkeypatch.setattr("woolly.serving.batches.store._MAX_FILES", 5)
    with pytest.raises(ApiError, match="the limit of 5 files is reached"):
        for _ in range(6):
            store.add_file("me", "rows.jsonl", "batch", b"")
    file = store.all_of("me", "file")[0]
    batch = {"id": store.new_id("batch"), "status": "in_progress", "created_at": 0, "owner": "me"}
    store.save(batch)
    store.journal(batch["id"]).write_bytes(bytes(999_000))
    with pytest.raises(ApiError, match="are used"):
        store.add_batch({**batch, "id": store.new_id("batch"), "input_file_id": file["id"]})


def test_object_is_read_once(tmp_path, monkeypatch):
    store, read, plain = BatchStore(tmp_path, 10**6), [], BatchStore._read
    monkeypatch.setattr(BatchStore, "_read", lambda store, path: read.append(path) or plain(store, path))
    for i in range(20):
        store.add_file(f"owner {i % 4}", "rows.jsonl", "batch", b"")
    assert len(read) <= 20
    batch = {"id": store.new_id("batch"), "status": "in_progress", "created_at": 0, "owner": ""}
    store.save(batch)
    assert [one["status"] for one in store.unfinished()] == ["in_progress"]
    store.unfinished()[0]["status"] = "changed"  # a copy
    assert [one["status"] for one in store.unfinished()] == ["in_progress"]
    BatchStore(tmp_path, 10**6).save({**batch, "status": "completed"})  # another server
    assert store.unfinished() == []


def test_damaged_object_is_missing(tmp_path):
    store = BatchStore(tmp_path, 10**6)
    for damaged in ("", "{", "[]", "{}"):
        (tmp_path / f"{store.new_id('batch')}.json").write_text(damaged)
    assert store.unfinished() == [] and store.all_of("", "batch") == []


def test_upload_without_metadata_leaves_nothing(tmp_path, monkeypatch):
    def full(store, found):
        raise ApiError(507, "not_stored", "the server could not write to disk: No space left on device")

    monkeypatch.setattr(BatchStore, "save", full)
    with pytest.raises(ApiError, match="No space"):
        BatchStore(tmp_path, 10**6).add_file("", "rows.jsonl", "batch", b"{}")
    assert not list(tmp_path.iterdir())


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    store = BatchStore(tmp_path, 10**6)
    file = store.add_file("", "rows.jsonl", "batch", b"{}")
    batch = {"id": store.new_id("batch"), "status": "in_progress", "created_at": 0, "owner": ""}
    store.save(batch)
    kept = {f"{file['id']}.json", f"{file['id']}.jsonl", f"{batch['id']}.json", f"{batch['id']}.part", "fresh.tmp"}
    left = [f"{store.new_id('file')}.jsonl", f"{store.new_id('batch')}.part", "a.jsonl.writing", "b.1234.tmp"]
    for name in (*kept, *left):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, None if name == "fresh.tmp" else (1000, 1000))
    store.sweep()
    assert {path.name for path in tmp_path.iterdir()} == kept
