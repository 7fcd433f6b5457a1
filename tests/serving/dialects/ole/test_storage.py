"""A full disk, and numbers that SQLite does not hold: a sentence for the client, and deleting makes room."""

import subprocess
from dataclasses import replace

import pytest

from woolly.errors import RequestError
from woolly.serving import ApiError
from woolly.serving.dialects.ole.store import SessionStore

LONG = [{"role": "system", "content": "x" * 9000}]


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 300 KB, which only root can make."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        pytest.skip("a small disk cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True, timeout=20)


def test_full_disk_is_reported_and_deleting_makes_room(small_disk):
    store = SessionStore(small_disk / "sessions.db")
    ids = []
    with pytest.raises(ApiError) as caught:
        for _ in range(100):
            ids.append(store.create("", model_name="tiny", max_context_length=64, messages=LONG).id)
    assert (caught.value.status, caught.value.code) == (507, "storage_full")
    assert len(store.all("")) == len(ids) and store.messages("", ids[0]) == LONG
    for id in ids[:2]:
        store.delete("", id)
    store.create("", model_name="tiny", max_context_length=64)
    assert len(store.all("")) == len(ids) - 1
    store.close()


def test_client_gets_507_and_can_delete(app_with):
    with app_with() as client:
        made = client.post("/api/v1/sessions", json={"system_prompt": "x" * 9000})
        store = client.app.state.sessions
        (n,) = store._db.execute("PRAGMA page_count").fetchone()
        store._db.execute(f"PRAGMA max_page_count = {n}")  # SQLite fails as on a full disk
        full = client.post("/api/v1/sessions", json={"system_prompt": "x" * 9000})
        assert (full.status_code, full.json()["error"]["code"]) == (507, "storage_full")
        assert "full" in full.json()["error"]["message"] and full.json()["error"]["suggestion"]
        assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).status_code == 200
        assert client.delete(f"/api/v1/sessions/{made.json()['session_id']}").status_code == 200
        assert client.post("/api/v1/sessions", json={"system_prompt": "x" * 8000}).status_code == 201


def test_context_longer_than_an_integer_is_clamped(client, monkeypatch):
    models = client.app.state.models
    plain = models._with_state
    monkeypatch.setattr(models, "_with_state", lambda info: replace(plain(info), context_length=2**64 - 1))
    reply = client.post("/api/v1/sessions", json={})
    assert reply.status_code == 201
    assert reply.json()["session_info"]["max_context_length"] == 2**63 - 1


@pytest.mark.parametrize("damage", ["random", "truncated"])
def test_damaged_file_is_set_aside_and_the_store_starts_empty(tmp_path, damage):
    path = tmp_path / "sessions.db"
    store = SessionStore(path)
    for _ in range(50):
        store.create("me", model_name="m", max_context_length=9)
    store.close()
    content = path.read_bytes()
    damaged = bytes(range(256)) * 8 if damage == "random" else content[: len(content) // 2]
    path.write_bytes(damaged)
    store = SessionStore(path)
    assert store.create("me", model_name="m", max_context_length=9).id
    store.close()
    assert [file.read_bytes() for file in tmp_path.glob("sessions.db.damaged-*")] == [damaged]


def test_folder_in_place_of_the_file_is_named(tmp_path):
    with pytest.raises(RequestError, match=f"cannot open the sessions file {tmp_path}: Is a directory"):
        SessionStore(tmp_path)
