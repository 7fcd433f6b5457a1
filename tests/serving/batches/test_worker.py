"""The worker of batches: no fault of one batch ends the others, and a cancelled one keeps its answers."""

import asyncio
import itertools
import json
import threading
import time
from dataclasses import replace

import pytest

from tests.serving.batches.test_batches import ENDPOINT, ENDS, app, ended, rows, upload  # noqa: F401 - app is a fixture
from woolly.engine.step.scheduler import Scheduler
from woolly.errors import ModelError
from woolly.serving.accounts.keys_file import add_key
from woolly.serving.accounts.quotas import Quotas
from woolly.serving.batches import row_client as ask_module
from woolly.serving.batches import worker as worker_module
from woolly.serving.batches.job import Job
from woolly.serving.batches.journal import Journal
from woolly.serving.batches.store import BatchStore
from woolly.serving.dialects.openai import files
from woolly.serving.errors import ApiError
from woolly.serving.generation.running_request import RunningRequest


def create(client, values=None, headers=None):
    id = upload(client, rows(3) if values is None else values, headers).json()["id"]
    return client.post("/v1/batches", json={"input_file_id": id, "endpoint": ENDPOINT}, headers=headers)


def check_clean(client):
    """Journals and their locks go right after the end of a batch."""
    end = time.monotonic() + 60
    while left := list(client.app.state.batches.store.folder.glob("*.part*")):
        assert time.monotonic() < end, left
        time.sleep(0.01)


def content(client, batch):
    return client.get(f"/v1/files/{batch['output_file_id']}/content").text.splitlines()


def test_full_disk_pauses_a_batch_and_the_rest_continues(app, monkeypatch):  # noqa: F811
    monkeypatch.setattr(worker_module, "_PAUSE", 0.02)
    plain, failures = Journal.add, []

    def full(journal, *given):
        if len(failures) < 2:
            failures.append(given)
            raise OSError(28, "No space left on device")
        plain(journal, *given)

    monkeypatch.setattr(Journal, "add", full)
    with app() as client:
        batch = ended(client, create(client).json()["id"])
        assert len(failures) == 2 and batch["status"] == "completed" and len(content(client, batch)) == 3


def test_failed_status_write_is_retried(app, monkeypatch):  # noqa: F811
    monkeypatch.setattr(worker_module, "_PAUSE", 0.02)
    plain, n_left = BatchStore.save, [3]

    def full(store, found):
        if found["object"] == "batch" and found["status"] != "validating" and n_left[0]:
            n_left[0] -= 1
            raise ApiError(507, "not_stored", "the server could not write to disk: No space left on device")
        plain(store, found)

    monkeypatch.setattr(BatchStore, "save", full)
    with app() as client:
        assert ended(client, create(client).json()["id"])["status"] == "completed"


@pytest.mark.parametrize("error", [ModelError("the file is damaged"), MemoryError(), KeyError("x")])
def test_error_fails_only_its_batch_and_the_server_stops(app, monkeypatch, error):  # noqa: F811
    plain, is_first = Job._learn, [True]

    async def fails(job, *given):
        if is_first.pop() if is_first else False:
            raise error
        return await plain(job, *given)

    monkeypatch.setattr(Job, "_learn", fails)
    with app() as client:
        batch = ended(client, create(client).json()["id"])
        said = batch["errors"]["data"][0]["message"]
        assert batch["status"] == "failed" and ("damaged" if isinstance(error, ModelError) else "log") in said
        assert ended(client, create(client).json()["id"])["status"] == "completed"
        check_clean(client)


def test_cancelled_batch_waiting_after_a_restart_keeps_its_answers(app, monkeypatch):  # noqa: F811
    plain = Job._ask

    async def stalls(job, row):
        if row.number:
            await asyncio.Event().wait()
        return await plain(job, row)

    monkeypatch.setattr(Job, "_ask", stalls)
    with app() as client:
        ids = [create(client).json()["id"]]
        while client.get(f"/v1/batches/{ids[0]}").json()["request_counts"]["completed"] < 1:
            time.sleep(0.01)
        ids.append(create(client).json()["id"])
        cancelled = client.post(f"/v1/batches/{ids[1]}/cancel").json()  # it waits behind the first
        assert cancelled["status"] == "cancelling"
    monkeypatch.setattr(Job, "_ask", plain)
    with app() as client:
        assert client.get(f"/v1/batches/{ids[1]}").json()["status"] == "cancelling"  # on disk
        assert client.post(f"/v1/batches/{ids[0]}/cancel").json()["status"] == "cancelling"
        first, second = (ended(client, id) for id in ids)
        assert first["status"] == second["status"] == "cancelled"
        assert len(content(client, first)) == 1 and second["output_file_id"] is None
        check_clean(client)


def test_cancel_during_row_counting_takes_effect(app, monkeypatch):  # noqa: F811
    counting, go_on = threading.Event(), threading.Event()
    plain = worker_module.count_rows

    def slow(path):
        counting.set()
        go_on.wait(60)
        return plain(path)

    monkeypatch.setattr(worker_module, "count_rows", slow)
    with app() as client:
        id = create(client).json()["id"]
        assert counting.wait(60)
        assert client.post(f"/v1/batches/{id}/cancel").json()["status"] == "cancelling"
        go_on.set()
        batch = ended(client, id)
        assert batch["status"] == "cancelled" and batch["request_counts"] == {"total": 3, "completed": 0, "failed": 0}


def test_batch_ended_by_another_server_is_left_alone(app, monkeypatch):  # noqa: F811
    with app() as client:
        worker = client.app.state.batches
        batch = ended(client, create(client).json()["id"])
        before = {**worker.store.get("", batch["id"], "batch"), "status": "in_progress"}  # as a scan has read it
        client.portal.call(worker._try, before)
        assert client.get(f"/v1/batches/{batch['id']}").json() == batch
        end = time.monotonic() + 60
        while list(worker.store.folder.glob("*.part*")):  # the job gives its lock back after it has said that it ended
            assert time.monotonic() < end
            time.sleep(0.01)


def test_temporary_rejection_is_not_a_failed_row(app, monkeypatch):  # noqa: F811
    plain, n_left = Job._learn, [2]

    async def loads(job, *given):
        if n_left[0]:
            n_left[0] -= 1
            raise ApiError(503, "model_loading", "tiny is loading; try again", retry_after=0.01)
        return await plain(job, *given)

    monkeypatch.setattr(Job, "_learn", loads)
    with app() as client:
        assert ended(client, create(client).json()["id"])["request_counts"]["completed"] == 3

        async def never(job, *given):
            raise ApiError(503, "insufficient_memory", "tiny does not fit into memory", retry_after=0.01)

        monkeypatch.setattr(Job, "_learn", never)
        monkeypatch.setattr("woolly.serving.batches.job._PATIENCE", 0.05)
        batch = ended(client, create(client).json()["id"])
        assert batch["status"] == "failed" and "does not fit" in batch["errors"]["data"][0]["message"]


def test_identity_is_computed_once_per_capability(app, monkeypatch):  # noqa: F811
    plain, asked = Job._learn, []

    async def counts(job, *given):
        asked.append(given)
        return await plain(job, *given)

    monkeypatch.setattr(Job, "_learn", counts)
    with app(parallel=4) as client:
        ended(client, create(client, rows(6)).json()["id"])
        assert asked == [("tiny", "completion")]


def test_adapter_scale_and_context_are_parts_of_a_key(app, tmp_path):  # noqa: F811
    from woolly.serving.batches import read_row
    from woolly.serving.batches.job import _Model

    with app() as client:
        row = read_row(0, {"prompt": "x"})

        async def key(ctx, has_adapters, scales):
            client.app.state.generator.adapter_scales = scales
            journal = Journal(tmp_path / "j.part")
            job = Job(client.app, lambda: None, journal, created=0)
            job._models[None, "completion"] = asyncio.ensure_future(
                asyncio.sleep(0, _Model("tiny", lambda: None, "w1", "None", ctx, has_adapters))
            )
            journal.close()
            model, added = await job._facts(row)
            return row.key(model.identity, added)

        keys = [client.portal.call(key, *one) for one in ((64, True, (0.5,)), (64, True, (1.0,)), (96, True, (1.0,)))]
        assert len(set(keys)) == 3
        assert client.portal.call(key, 64, False, (1.0,)) == client.portal.call(key, 64, False, (0.5,))


def test_model_reloaded_within_a_job_is_checked_again(app, monkeypatch):  # noqa: F811
    plain, learned, replies = Job._learn, [], []
    ask = Job._ask

    async def learns(job, *given):
        model = await plain(job, *given)
        learned.append(replace(model, ctx=model.ctx + len(learned)))  # as if the context differed after each load
        return learned[-1]

    async def reloads(job, row):
        replies.append(row.body["model"])
        reply = await ask(job, row)
        if len(replies) == 1:
            await job._app.state.models.unload("tiny")
            await job._app.state.models.load("tiny")
        return reply

    monkeypatch.setattr(Job, "_learn", learns)
    monkeypatch.setattr(Job, "_ask", reloads)
    value = rows(1)[0]
    del value["body"]["model"]
    with app() as client:
        batch = ended(client, create(client, [value]).json()["id"])
        assert batch["request_counts"]["completed"] == 1
        assert len(learned) == 2 and replies == ["tiny", "tiny"]


def test_files_and_open_batches_are_limited(app, monkeypatch):  # noqa: F811
    go_on = threading.Event()
    plain = worker_module.count_rows

    def slow(path):
        go_on.wait(60)
        return plain(path)

    monkeypatch.setattr(worker_module, "count_rows", slow)
    monkeypatch.setattr("woolly.serving.batches.store._MAX_OPEN_BATCHES", 2)
    with app(max_files="3000") as client:
        id = upload(client, ["hi"]).json()["id"]
        body = {"input_file_id": id, "endpoint": ENDPOINT}
        made = [client.post("/v1/batches", json=body) for _ in range(3)]
        assert [one.status_code for one in made] == [200, 200, 429]
        assert made[2].json()["error"]["code"] == "too_many_batches" and "retry-after" in made[2].headers
        go_on.set()
        both = [ended(client, one.json()["id"]) for one in made[:2]]
        refused = client.post("/v1/batches", json=body)  # the objects and the reasons of failed rows fill the room
        assert refused.status_code == 413 and "delete some" in refused.json()["error"]["message"]
        assert client.delete(f"/v1/files/{both[0]['error_file_id']}").status_code == 200


def test_disk_is_used_on_threads(app, monkeypatch):  # noqa: F811
    threads = set()

    def watched(owner, name):
        plain = getattr(owner, name)

        def call(*given):
            threads.add(threading.get_ident())
            return plain(*given)

        monkeypatch.setattr(owner, name, call)

    for owner, names in (
        (Journal, ("__init__", "add", "sync", "remove")),
        (BatchStore, ("add_file", "save", "get", "all_of", "unfinished", "delete_file", "sweep")),
        (worker_module, ("count_rows", "write_lines")),
        (files, ("read_form",)),
    ):
        for name in names:
            watched(owner, name)
    with app() as client:
        batch = ended(client, create(client).json()["id"])
        assert batch["status"] == "completed" and client.get("/v1/batches").json()["data"] == [batch]
        for file in client.get("/v1/files").json()["data"]:
            assert client.delete(f"/v1/files/{file['id']}").status_code == 200
        assert threads and client.portal.call(threading.get_ident) not in threads


def test_another_server_of_the_folder_may_cancel(app, monkeypatch):  # noqa: F811
    monkeypatch.setattr(worker_module, "_EVERY", 0.01)
    plain = Job._ask

    async def stalls(job, row):
        while row.number and not job.is_cancelled:
            await asyncio.sleep(0.005)
        return await plain(job, row)

    monkeypatch.setattr(Job, "_ask", stalls)
    with app() as client:
        id = create(client).json()["id"]
        store = client.app.state.batches.store
        while store.get("", id, "batch")["request_counts"]["completed"] < 1:
            time.sleep(0.005)
        while (batch := store.get("", id, "batch"))["status"] != "cancelled":
            if batch["status"] == "in_progress":  # again if the counts were written at the same moment
                store.save({**batch, "status": "cancelling", "cancelling_at": 1})
            time.sleep(0.02)
        assert len(content(client, ended(client, id))) == 1


def test_interactive_answer_takes_the_slot_of_a_row(app, monkeypatch):  # noqa: F811
    posted, is_full, displaced = [threading.Semaphore(0), threading.Semaphore(0)], threading.Event(), []
    start, admit, preempt = RunningRequest.start, Scheduler._admit, Scheduler._preempt
    passed = set()
    n_started = itertools.count()

    def starts(running):
        start(running)
        if (n := next(n_started)) in (1, 2):  # the second row, and the request that comes meanwhile
            posted[n - 1].release()

    def admits(scheduler):  # on the engine's thread: no row ends while others are on their way
        n = len(scheduler.running)
        if n == 2:
            is_full.set()
        if n and n not in passed:
            passed.add(n)
            posted[n - 1].acquire(timeout=60)
        admit(scheduler)

    def preempts(scheduler, request):
        displaced.append(request)
        preempt(scheduler, request)

    monkeypatch.setattr(RunningRequest, "start", starts)
    monkeypatch.setattr(Scheduler, "_admit", admits)
    monkeypatch.setattr(Scheduler, "_preempt", preempts)
    values = rows(3, max_tokens=40, ignore_eos=True, temperature=0)
    with app(parallel=2, ctx_size=256) as client:
        id = create(client, values).json()["id"]
        assert is_full.wait(60)
        reply = client.post(ENDPOINT, json={"model": "tiny", "prompt": "hi", "max_tokens": 1}).json()
        assert reply["usage"]["completion_tokens"] == 1
        batch = ended(client, id)
        texts = {json.loads(line)["response"]["body"]["choices"][0]["text"] for line in content(client, batch)}
        assert len(texts) == 1 and batch["request_counts"]["completed"] == 3  # a displaced row has the same bits
    assert [(request.priority, request.group < 0) for request in displaced] == [(-1, True)]


def test_batch_ends_before_it_exceeds_the_limit_of_its_owner(app):  # noqa: F811
    most = 40_000
    with app(max_files=str(most)) as client:
        folder = client.app.state.batches.store.folder
        batch = ended(client, create(client, rows(100)).json()["id"])
        assert batch["status"] == "failed" and f"of {most} bytes are used" in batch["errors"]["data"][0]["message"]
        n_answers = len(content(client, batch))
        assert 0 < n_answers < 100 and batch["request_counts"]["completed"] == n_answers
        check_clean(client)
        assert most // 2 < sum(path.stat().st_size for path in folder.iterdir()) < most


def test_exhausted_key_delays_no_other(app, monkeypatch, tmp_path):  # noqa: F811
    monkeypatch.setattr(ask_module, "_MINUTE", 0.02)
    file, most = tmp_path / "keys.toml", {"requests_per_day": 1}
    anna, ole = ({"x-api-key": add_key(file, name, limits=given)} for name, given in (("anna", most), ("ole", {})))
    with app(keys_file=file) as client:
        first = create(client, headers=anna).json()["id"]
        assert ended(client, create(client, headers=ole).json()["id"], ole)["status"] == "completed"
        assert client.get(f"/v1/batches/{first}", headers=anna).json()["status"] not in ENDS
        monkeypatch.setattr(Quotas, "admit", lambda quotas, account: None)
        batch = ended(client, first, anna)
        assert batch["request_counts"] == {"total": 3, "completed": 3, "failed": 0}


def test_server_stopped_while_opening_a_journal_closes_it(app, monkeypatch):  # noqa: F811
    begun, goes_on, made = threading.Event(), threading.Event(), []

    class Slow(Journal):
        def __init__(self, *given):
            begun.set()
            assert goes_on.wait(60)
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr(worker_module, "Journal", Slow)
    with app() as client:
        worker = client.app.state.batches
        create(client)
        assert begun.wait(60)
        client.portal.call(worker._task.cancel)
        goes_on.set()
        client.portal.call(worker.stop)
        assert made[0]._file.closed and not list(worker.store.folder.glob("*.lock"))
