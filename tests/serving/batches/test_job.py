"""A batch: each row once, the same bytes whatever ended the run before, and bad rows that end nothing."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from tests.cases.fork_server import Ready
from tests.cli.terminal import woolly
from woolly import RequestError
from woolly.serving.batches import Journal, journal, read_row
from woolly.serving.batches.files import write_lines
from woolly.serving.batches.job import Job
from woolly.serving.errors import ApiError
from woolly.serving.settings.table import Settings

MAIN = "from woolly.cli import main; main()"


def rows(n=12, **more):
    return [{"custom_id": f"r{i}", "prompt": f"Fact {i}:", "max_tokens": 4 + i % 5, **more} for i in range(n)]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("WOOLLY_HOME", str(tmp_path / "home"))


@pytest.fixture
def written(tmp_path):
    """Writes rows to a file whose time never changes."""

    def write(values, name="in.jsonl"):
        path = tmp_path / name
        path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in values))
        os.utime(path, (1_700_000_000, 1_700_000_000))
        return path

    return write


def run(source, target, model, *more):
    return woolly("batch", source, target, "-m", model, "-c", 256, "-t", 1, *more)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_row_format_is_answered_in_order(written, tmp_path, tiny_model):
    chat = [{"role": "user", "content": "hi"}]
    body = {"model": "any", "messages": chat, "max_tokens": 3}
    source = written(
        [
            {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body},
            {"messages": chat, "max_tokens": 2},
            {"prompt": "One", "max_tokens": 2, "temperature": 0},
        ]
    )
    run(source, tmp_path / "out.jsonl", tiny_model)
    found = lines(tmp_path / "out.jsonl")
    assert [one["custom_id"] for one in found] == ["a", "row-2", "row-3"]
    assert [one["response"]["body"]["object"] for one in found] == [*["chat.completion"] * 2, "text_completion"]
    assert all(one["response"]["status_code"] == 200 and one["error"] is None for one in found)
    assert {one["response"]["body"]["created"] for one in found} == {1_700_000_000}
    assert not list(tmp_path.glob("*.part")) and not list(tmp_path.glob("*errors*"))


def test_repeated_run_writes_the_same_bytes_without_seeds(written, tmp_path, tiny_model):
    source = written(rows(temperature=1.5))
    run(source, tmp_path / "a.jsonl", tiny_model)
    run(source, tmp_path / "b.jsonl", tiny_model, "-np", 3)
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    texts = [one["response"]["body"]["choices"][0]["text"] for one in lines(tmp_path / "a.jsonl")]
    assert len(set(texts)) > 6


def test_bad_rows_go_to_the_errors_and_the_others_are_answered(written, tmp_path, tiny_model):
    twice = {"custom_id": "r0", "prompt": "again", "max_tokens": 1}
    long = {"custom_id": "long", "prompt": "x" * 4000, "max_tokens": 1}
    bad = ["{", "[]", "NaN", {"custom_id": 5, "prompt": "x"}, {"nothing": 1}, {"prompt": "x", "stream": True}]
    bad += [{"url": "/v1/images", "body": {}}, {"prompt": "x", "temperature": "hot"}, twice, long]
    source = written([*rows(3), *bad])
    run(source, tmp_path / "out.jsonl", tiny_model)
    assert [one["custom_id"] for one in lines(tmp_path / "out.jsonl")] == ["r0", "r1", "r2"]
    failed = lines(tmp_path / "out.errors.jsonl")
    assert len(failed) == len(bad)
    assert all(one["response"]["status_code"] == 400 for one in failed)
    messages = [one["response"]["body"]["error"]["message"] for one in failed]
    assert "same custom_id" in messages[-2] and "context" in messages[-1]


def test_run_killed_at_any_row_resumes_to_the_same_bytes(written, tmp_path, tiny_model):
    source = written([*rows(40, temperature=1.0), "{"])
    run(source, tmp_path / "whole.jsonl", tiny_model)
    target = tmp_path / "out.jsonl"
    journal = tmp_path / "out.jsonl.part"
    command = [
        sys.executable,
        "-c",
        MAIN,
        "batch",
        source,
        target,
        "-m",
        tiny_model,
        "-c",
        "256",
        "-t",
        "1",
        "-np",
        "2",
    ]
    for least in (1, 2000):  # bytes of the journal before the kill
        child = Ready(command, stderr=subprocess.DEVNULL)
        try:
            while child.poll() is None and (not journal.exists() or journal.stat().st_size < least):
                time.sleep(0.002)
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()
    if journal.exists():
        with journal.open("ab") as file:
            file.write(b"0000 torn")  # what a line that was cut short looks like
    run(source, target, tiny_model)
    assert target.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert (tmp_path / "out.errors.jsonl").read_bytes() == (tmp_path / "whole.errors.jsonl").read_bytes()
    assert not journal.exists()


def test_journal_of_another_model_or_other_rows_is_rejected(written, tmp_path, tiny_model):
    source = written(rows(3))
    journal = Journal(tmp_path / "out.jsonl.part")
    journal.add(0, "of-another", True, {"custom_id": "stale"})
    journal.add(7, "beyond", True, {"custom_id": "gone"})
    journal.close()
    run(source, tmp_path / "out.jsonl", tiny_model)
    assert [one["custom_id"] for one in lines(tmp_path / "out.jsonl")] == ["r0", "r1", "r2"]


def test_parquet_in_and_out(written, tmp_path, tiny_model):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    chat = json.dumps([{"role": "user", "content": "hi"}])
    table = arrow.table({"custom_id": ["a", "b"], "messages": [chat, "no JSON"], "max_tokens": [2, 2]})
    parquet.write_table(table, tmp_path / "in.parquet")
    run(tmp_path / "in.parquet", tmp_path / "out.parquet", tiny_model)
    assert parquet.read_table(tmp_path / "out.parquet").to_pydict()["custom_id"] == ["a"]
    assert parquet.read_table(tmp_path / "out.errors.parquet").to_pydict()["custom_id"] == ["b"]


def test_damaged_table_gives_a_one_line_error(written, tmp_path, tiny_model):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    source = tmp_path / "in.parquet"
    parquet.write_table(arrow.table({"prompt": ["One"] * 1000}), source)
    whole = source.read_bytes()
    for damaged in (whole[:-20], b"no table", whole[:4] + bytes(60) + whole[64:]):
        source.write_bytes(damaged)
        with pytest.raises(RequestError, match=r"cannot read .*in\.parquet as Parquet: [^\n]+$"):
            run(source, tmp_path / "out.jsonl", tiny_model)
    assert not (tmp_path / "out.jsonl").exists() and not list(tmp_path.glob("*.writing"))


def test_unwritable_lines_leave_nothing(tmp_path):
    with pytest.raises(TypeError):
        write_lines(tmp_path / "out.jsonl", [{"a": 1}, {"a": object()}])
    assert not list(tmp_path.iterdir())


def test_concurrent_rows_follow_the_loaded_model(monkeypatch):
    max_concurrent, running, most = 2, set(), []

    async def settle(job, row):
        nonlocal max_concurrent
        running.add(row)
        most.append(len(running))
        await asyncio.sleep(0)
        max_concurrent = 8  # the first row has loaded the model
        running.remove(row)

    async def numbers():
        for number in range(40):
            yield number

    monkeypatch.setattr(Job, "_settle", settle)
    state = SimpleNamespace(settings=Settings(), generator=SimpleNamespace(max_concurrent=lambda: max_concurrent))
    kept = SimpleNamespace(keep=lambda n: None, sync=lambda: None, n_good=0, notes=())
    asyncio.run(Job(SimpleNamespace(state=state), numbers, kept, created=0).run())
    assert most[:2] == [1, 2] and max(most) == 8 and len(most) == 40


def test_full_disk_ends_the_run_with_the_answers_so_far(written, tmp_path, tiny_model, monkeypatch):
    source = written(rows(6))
    run(source, tmp_path / "whole.jsonl", tiny_model)
    plain, n_left = Journal.add, [3]

    def full(journal, *given):
        n_left[0] -= 1
        if n_left[0] < 0:
            raise OSError(28, "No space left on device")
        plain(journal, *given)

    monkeypatch.setattr(Journal, "add", full)
    with pytest.raises(RequestError, match=r"No space left.*the same command goes on"):
        run(source, tmp_path / "out.jsonl", tiny_model)
    assert not (tmp_path / "out.jsonl").exists()
    monkeypatch.setattr(Journal, "add", plain)
    run(source, tmp_path / "out.jsonl", tiny_model)
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_two_runs_cannot_write_one_output(tmp_path):
    first = Journal(tmp_path / "a.part")
    with pytest.raises(RequestError, match="another process"):
        Journal(tmp_path / "a.part")
    first.close()
    Journal(tmp_path / "a.part").close()


def test_unusable_names_are_rejected(written, tmp_path, tiny_model):
    source = written(rows(1))
    for given, named in (
        (("in.txt", "out.jsonl"), "ends in"),
        (("none.jsonl", "out.jsonl"), "does not exist"),
        ((source, "nowhere/out.jsonl"), "not a folder"),
        ((source, source), "both"),
        ((source, "out.jsonl", "--errors", source), "IN and --errors are both"),
        ((source, "out.jsonl", "--errors", tmp_path / "." / "out.jsonl"), "OUT and --errors are both"),
        ((source, "linked.jsonl"), "both"),
    ):
        if given[1] == "linked.jsonl":
            (tmp_path / "linked.jsonl").hardlink_to(source)
        with pytest.raises(RequestError, match=named):
            run(tmp_path / given[0], tmp_path / given[1], tiny_model, *given[2:])
    named = tmp_path / "out.errors.jsonl"  # the default of --errors
    named.write_bytes(source.read_bytes())
    with pytest.raises(RequestError, match="IN and --errors"):
        run(named, tmp_path / "out.jsonl", tiny_model)
    assert named.read_bytes() == source.read_bytes()


def test_file_that_is_not_a_journal_is_unchanged(tmp_path):
    path = tmp_path / "out.jsonl.part"
    for foreign in (b"notes of mine\n", b"no line", b"00000000 {}\n"):
        path.write_bytes(foreign)
        with pytest.raises(RequestError, match=r"out\.jsonl\.part is not a batch journal"):
            Journal(path)
        assert path.read_bytes() == foreign and not list(tmp_path.glob("*.lock"))
    for torn in (b"", b"00ab", b'12345678 [0,"ke', bytes(4096)):
        path.write_bytes(torn)
        Journal(path).close()
        assert path.read_bytes() == b""


def test_lock_file_removed_by_its_owner_is_not_the_lock(tmp_path, monkeypatch):
    path = tmp_path / "a.part"
    first = Journal(path)
    first.add(0, "key", True, {"custom_id": "a"})
    plain, n_left = journal.file_lock, [1]

    @contextmanager
    def late(lock, waiting):
        if n_left[0]:  # the owner ends between the opening of the lock's file and its locking
            n_left[0] -= 1
            with lock.open("ab") as gone:
                first.remove()
                yield gone
        else:
            with plain(lock, waiting) as file:
                yield file

    monkeypatch.setattr(journal, "file_lock", late)
    second = Journal(path)
    assert not second.notes
    with pytest.raises(journal.JournalLocked):
        Journal(path)
    second.remove()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "value", [None, 5, {}, {"body": 1}, {"method": "GET", "body": {}}, {"custom_id": "", "prompt": "x"}]
)
def test_invalid_row_error_says_what_was_expected(value):
    with pytest.raises(ApiError, match=r"expected|add one of them"):
        read_row(0, value)
