"""A process that begins anew as itself, but not for ever."""

import sys
import time

import pytest

from woolly.machine.restart import can_restart

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot replace a process")


@pytest.mark.parametrize(
    ("ages", "expected"),
    [((), True), ((10, 20, 30, 40), True), ((10, 20, 30, 40, 50), False), ((10, 20, 30, 40, 7200), True)],
)
def test_what_fails_again_and_again_is_not_begun_anew(ages, expected, monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "woolly", "serve"])
    monkeypatch.setenv("WOOLLY_RESTARTS", " ".join(f"{time.time() - age:.0f}" for age in ages))
    assert can_restart() is expected


def test_times_that_are_none_do_not_count(monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "woolly", "serve"])
    monkeypatch.setenv("WOOLLY_RESTARTS", "yes nan -1 99999999999 1e9 x")
    assert can_restart()
