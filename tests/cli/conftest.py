"""Tests that call `main` must not leave its handling of signals to the tests after them."""

import signal

import pytest


@pytest.fixture(autouse=True)
def signals_stay():
    """Restores SIGPIPE: a server of a later test would end all tests with the first client that leaves."""
    before = signal.getsignal(signal.SIGPIPE)
    yield
    signal.signal(signal.SIGPIPE, before)
