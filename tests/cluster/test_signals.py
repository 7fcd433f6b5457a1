"""The signals that a replica ignores, on systems that have few of them."""

import signal
from types import SimpleNamespace

import pytest

from woolly.cluster import replica


@pytest.mark.parametrize("names", [("SIGINT",), ("SIGINT", "SIGHUP", "SIGUSR1")])
def test_replica_ignores_terminal_signals(names, monkeypatch):
    ignored = []
    known = {name: getattr(signal, name) for name in names}
    stand_in = SimpleNamespace(**known, SIG_IGN=signal.SIG_IGN, signal=lambda number, what: ignored.append(number))
    monkeypatch.setattr(replica, "signal", stand_in)
    monkeypatch.setattr(replica.sys, "argv", ["replica", "7"])
    monkeypatch.setattr(replica.warnings, "simplefilter", lambda kind: None)
    monkeypatch.setattr(replica.socket, "socket", lambda fileno: fileno)
    monkeypatch.setattr(replica, "Connection", lambda socket, *_, **__: socket)
    monkeypatch.setattr(replica, "Link", lambda link: link)
    monkeypatch.setattr(replica, "Replica", lambda link: SimpleNamespace(serve=lambda: ignored.append(link)))
    replica.main()
    assert ignored == [*known.values(), 7]
