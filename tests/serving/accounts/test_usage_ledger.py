"""KeyUsage ledger of keys, and its file."""

import asyncio
import json
import sqlite3
import threading

import pytest

from tests.cli.terminal import woolly
from woolly.errors import RequestError
from woolly.serving.accounts.account import Account
from woolly.serving.accounts.usage_ledger import KeyUsage, UsageLedger, read_usage
from woolly.serving.accounts.usage_meter import UsageMeter

DAY = 86_400


@pytest.fixture
def file(tmp_path):
    return tmp_path / "usage.db"


def filled(file):
    """Two keys, two models, two days, and two processes."""
    now = [20_000 * DAY]
    for process in range(2):
        ledger = UsageLedger(file, lambda: now[0])
        now[0] = (20_000 + process) * DAY
        for key, model in (("anna", "a"), ("anna", "b"), ("ole", "a"), ("ole", "a")):
            ledger.note(key, model, KeyUsage(1, 10, 4, 1))
        asyncio.run(ledger.flush())
        asyncio.run(ledger.flush())  # nothing is written twice
    return ledger


def test_totals_are_kept_by_key_model_and_day(file):
    ledger = filled(file)
    assert read_usage(file, ("key",)) == [
        {"key": "anna", "requests": 4, "prompt_tokens": 40, "cached_tokens": 16, "completion_tokens": 4},
        {"key": "ole", "requests": 4, "prompt_tokens": 40, "cached_tokens": 16, "completion_tokens": 4},
    ]
    rows = read_usage(file, ("day", "model"), since="2024-10-05", key="ole")
    assert [(row["day"], row["model"], row["requests"]) for row in rows] == [("2024-10-05", "a", 2)]
    assert read_usage(file, (), until="2024-10-04")[0]["requests"] == 4
    assert read_usage(file, (), until="2024-10-03") == []
    assert ledger.usage_today() == {"anna": KeyUsage(2, 20, 8, 2), "ole": KeyUsage(2, 20, 8, 2)}


def test_usage_of_today_survives_a_restart(file):
    who = Account("anna", "name:anna")
    ledger = UsageLedger(file)
    meter = UsageMeter(ledger=ledger)
    meter.charge(who, "a", {"prompt_tokens": 5, "cached_tokens": 1, "completion_tokens": 2})
    meter.charge(None, "a", {"prompt_tokens": 3})
    assert asyncio.run(ledger.read(("key",))) == [
        {"key": "-", "requests": 1, "prompt_tokens": 3, "cached_tokens": 0, "completion_tokens": 0},
        {"key": "anna", "requests": 1, "prompt_tokens": 5, "cached_tokens": 1, "completion_tokens": 2},
    ]
    assert UsageLedger(file).usage_today()["anna"].tokens == 7


def test_failed_write_is_retried(file, monkeypatch):
    ledger = UsageLedger(file)
    ledger.note("anna", "a", KeyUsage(1))
    write = ledger._write

    def fail(pending):
        raise sqlite3.OperationalError("disk is full")

    monkeypatch.setattr(ledger, "_write", fail)
    asyncio.run(ledger.flush())
    ledger.note("anna", "a", KeyUsage(1))
    monkeypatch.setattr(ledger, "_write", write)
    asyncio.run(ledger.flush())
    assert read_usage(file, ())[0]["requests"] == 2


def test_flush_waits_for_an_abandoned_write(file, monkeypatch):
    ledger = UsageLedger(file)
    write, begun, may_end, failures = ledger._write, threading.Event(), threading.Event(), iter([True])

    def slow(pending):
        begun.set()
        assert may_end.wait(60)
        if next(failures, False):
            raise sqlite3.OperationalError("disk is full")
        write(pending)

    async def end():
        running = asyncio.create_task(ledger.flush())
        await asyncio.to_thread(begun.wait, 60)
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()
        ledger.note("anna", "a", KeyUsage(1))
        last = asyncio.create_task(ledger.flush())
        await asyncio.sleep(0)
        may_end.set()
        await last

    monkeypatch.setattr(ledger, "_write", slow)
    ledger.note("anna", "a", KeyUsage(1))
    asyncio.run(end())
    assert read_usage(file, ())[0]["requests"] == 2


def test_invalid_arguments_give_a_one_line_error(file, tmp_path):
    (tmp_path / "text").write_text("no database, and long enough to be seen as none" * 20)
    with pytest.raises(RequestError, match=r"usage_file is .* which cannot be used: file is not a database"):
        UsageLedger(tmp_path / "text")
    filled(file)
    for wrong in (("keys",), ("key", "key"), ("key; DROP TABLE usage",)):
        with pytest.raises(RequestError, match="expected some of key, model, day"):
            read_usage(file, wrong)
    with pytest.raises(RequestError, match="since is 'yesterday'; expected a day such as"):
        read_usage(file, (), since="yesterday")
    with pytest.raises(RequestError, match="there is no usage in"):
        woolly("usage", "--usage-file", tmp_path / "none")


def test_usage_command_shows_totals(file):
    filled(file)
    shown = json.loads(woolly("usage", "--by", "model,key", "--json", "--usage-file", file))["usage"]
    assert [(row["model"], row["key"]) for row in shown] == [("a", "anna"), ("a", "ole"), ("b", "anna")]
    assert "anna" in woolly("usage", "--usage-file", file)
