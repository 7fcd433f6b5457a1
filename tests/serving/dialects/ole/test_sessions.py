"""Sessions are on the disk when a client is told so, whatever ends the process."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time

import httpx
import pytest

from tests.cases.fork_server import Ready
from tests.cases.tiny import TINY, write_tiny
from tests.serving.conftest import serving
from woolly.errors import RequestError
from woolly.serving import ApiError
from woolly.serving.dialects.ole.store import SessionStore

_WRITER = """
import sys
from pathlib import Path
from woolly.serving.dialects.ole.store import SessionStore

store = SessionStore(Path(sys.argv[1]))
session = store.create("", model_name="tiny", max_context_length=512)
print(session.id, flush=True)
for n in range(0, 100_000, 2):
    pair = [{"role": "user", "content": f"{n} " + "x" * 3000}, {"role": "assistant", "content": f"{n + 1}"}]
    store.append("", session.id, pair, after=n, context_length=n, model_name="tiny")
    print(n + 2, flush=True)
"""


@pytest.mark.parametrize("milliseconds", [30, 90, 170])
def test_killed_process_loses_nothing_acknowledged(tmp_path, milliseconds):
    path = tmp_path / "sessions.db"
    writer = Ready([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    session = writer.stdout.readline().strip()
    writer.stdout.readline()  # it is writing
    time.sleep(milliseconds / 1000)
    os.kill(writer.pid, signal.SIGKILL)
    reported = [line for line in writer.stdout.read().splitlines() if line]
    writer.stdout.close()
    writer.wait()
    n_told = max(map(int, reported), default=2)

    store = SessionStore(path)
    messages = store.messages("", session)
    kept = store.get("", session)
    store.close()
    assert kept.message_count == len(messages) >= n_told
    assert len(messages) % 2 == 0, "half of an exchange was kept"
    assert [int(message["content"].split()[0]) for message in messages] == list(range(len(messages)))
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()


def test_killed_server_resumes_its_sessions(tmp_path):
    model = write_tiny(TINY["llama"], tmp_path / "tiny.gguf")
    flags = ("--sessions-file", str(tmp_path / "sessions.db"), "--ctx", "512", "-t", "1")
    asked = {"messages": [{"role": "user", "content": "one"}], "max_tokens": 8, "seed": 1}
    with serving(model, tmp_path, *flags) as server:
        with server.client() as api:
            session = api.post("/api/v1/sessions", json={"system_prompt": "be brief"}).json()["session_id"]
            asked["session_id"] = session
            api.post("/api/v1/inference/chat", json=asked)
            before = api.get(f"/api/v1/sessions/{session}").json()
            # It dies during an answer of this session, which is kept whole or not at all.
            long = {**asked, "max_tokens": 300, "ignore_eos": True}
            with (
                contextlib.suppress(httpx.TransportError),
                api.stream("POST", "/api/v1/inference/stream", json=long) as reply,
            ):
                lines = reply.iter_lines()
                next(lines)
                server.process.kill()
                for _ in lines:
                    pass
        server.process.wait()
    with serving(model, tmp_path, *flags) as server, server.client() as api:
        after = api.get(f"/api/v1/sessions/{session}").json()
        assert after["messages"][:3] == before["messages"] and after["message_count"] in (3, 5)
        assert api.post("/api/v1/inference/chat", json={**asked, "max_tokens": 4}).status_code == 200
        assert api.get(f"/api/v1/sessions/{session}").json()["message_count"] == after["message_count"] + 2


@pytest.fixture
def store(tmp_path):
    store = SessionStore(tmp_path / "deep" / "sessions.db")
    yield store
    store.close()


def test_owner_sees_only_their_sessions(store):
    mine = store.create("me", model_name="m", max_context_length=8)
    assert [session.id for session in store.all("me")] == [mine.id] and store.all("you") == []
    for action in (store.get, store.messages, store.delete):
        with pytest.raises(ApiError) as refused:
            action("you", mine.id)
        assert refused.value.code == "session_not_found"
    store.delete("me", mine.id)
    assert store.all("me") == []


def test_stale_answer_is_not_added(store):
    session = store.create("", model_name="m", max_context_length=8, messages=[{"role": "system", "content": "s"}])
    pair = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    store.append("", session.id, pair, after=1, context_length=7, model_name="n")
    with pytest.raises(ApiError, match="changed during this answer") as refused:
        store.append("", session.id, pair, after=1, context_length=7, model_name="n")
    assert refused.value.status == 409
    kept = store.get("", session.id)
    assert (kept.message_count, kept.context_length, kept.model_name) == (3, 7, "n")


def test_text_and_metadata_round_trip(store):
    odd = {"role": "user", "content": "ü \ud800 \0 '; DROP TABLE sessions; --"}
    session = store.create("", model_name="m", max_context_length=8, metadata={"a": [1, {"b": None}]}, messages=[odd])
    assert store.messages("", session.id) == [odd]
    assert store.get("", session.id).metadata == {"a": [1, {"b": None}]}


@pytest.mark.parametrize("metadata", [{"a": float("nan")}, {"a": "x" * 20_000}])
def test_invalid_or_too_large_metadata_is_rejected(store, metadata):
    with pytest.raises(ApiError) as refused:
        store.create("", model_name="m", max_context_length=8, metadata=metadata)
    assert refused.value.status == 400 and refused.value.param == "metadata"
    assert store.all("") == []


def test_database_is_private_and_a_later_version_is_rejected(tmp_path):
    path = tmp_path / "sessions.db"
    store = SessionStore(path)
    store.create("", model_name="m", max_context_length=8)
    files = list(tmp_path.iterdir())
    assert len(files) == 4, "the database, its log, its index and the reserve"
    assert all(file.stat().st_mode & 0o077 == 0 for file in files)
    store.close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(RequestError, match="version 99"):
        SessionStore(path)


def test_failed_commit_leaves_the_store_usable(store):
    with pytest.raises(sqlite3.IntegrityError), store._transaction() as db:
        db.execute("PRAGMA defer_foreign_keys = ON")  # checked at COMMIT, which fails
        db.execute("INSERT INTO messages VALUES ('nobody', 0, '')")
    assert store.create("", model_name="m", max_context_length=8).message_count == 0


def test_keys_have_separate_sessions_that_survive_a_restart(app_with):
    def sessions(api, key):
        return [one["id"] for one in api.get("/api/v1/sessions", headers={"authorization": f"Bearer {key}"}).json()]

    with app_with(api_key=("first", "second")) as api:
        session = api.post("/api/v1/sessions", headers={"x-api-key": "first"}).json()["session_id"]
        assert sessions(api, "first") == [session] and sessions(api, "second") == []
        token = api.post("/api/v1/auth/token", json={"user_id": "ole", "api_key": "first"}).json()["token"]
        assert sessions(api, token) == []
        own = api.post("/api/v1/sessions", headers={"x-api-key": token}).json()["session_id"]
        assert sessions(api, token) == [own]
        same = api.post("/api/v1/auth/token", json={"user_id": "ole", "api_key": "second"}).json()["token"]
        assert sessions(api, same) == []
        assert api.get("/api/v1/sessions").status_code == 401
        other = api.get(f"/api/v1/sessions/{session}", headers={"x-api-key": "second"})
        assert other.status_code == 404 and json.loads(other.text)["error"]["code"] == "session_not_found"
    with app_with(api_key=("first",)) as api:
        assert sessions(api, "first") == [session]


def test_session_limit_is_per_owner(tmp_path):
    store = SessionStore(tmp_path / "sessions.db", max_sessions=2)
    made = [store.create("me", model_name="m", max_context_length=8) for _ in range(2)]
    with pytest.raises(ApiError, match="has 2 sessions; the limit is 2") as refused:
        store.create("me", model_name="m", max_context_length=8)
    assert (refused.value.status, refused.value.code) == (409, "session_limit_reached")
    store.create("you", model_name="m", max_context_length=8)
    store.delete("me", made[0].id)
    store.create("me", model_name="m", max_context_length=8)
    store.close()


def test_session_bytes_are_limited(app_with):
    def say(text):
        asked = {"messages": [{"role": "user", "content": text}], "session_id": session, "max_tokens": 4}
        return api.post("/api/v1/inference/chat", json=asked)

    with app_with(max_session_size="500") as api:
        refused = api.post("/api/v1/sessions", json={"system_prompt": "x" * 500})
        assert refused.status_code == 413 and refused.json()["error"]["code"] == "session_too_large"
        assert "system_prompt needs" in refused.json()["error"]["message"]
        assert api.get("/api/v1/sessions").json() == []
        session = api.post("/api/v1/sessions", json={"system_prompt": "x" * 50}).json()["session_id"]
        assert say("y" * 100).status_code == 200
        refused = say("z" * 250)
        assert refused.status_code == 413 and "the limit is 500" in refused.json()["error"]["message"]
        assert api.get(f"/api/v1/sessions/{session}").json()["message_count"] == 3
        assert say("z").status_code == 200
        assert api.app.state.generator.admission.n_open == 0


def test_settings_limit_the_sessions_of_a_client(app_with):
    with app_with(max_sessions=1) as api:
        assert api.post("/api/v1/sessions").status_code == 201
        refused = api.post("/api/v1/sessions")
        assert refused.status_code == 409 and refused.json()["error"]["code"] == "session_limit_reached"
