"""Files that are read again while the server runs, and what SIGHUP means."""

import os
import signal
import sys
from types import SimpleNamespace

import pytest

from woolly.errors import RequestError
from woolly.serving import Settings
from woolly.serving.accounts import keys_file
from woolly.serving.accounts.keys_file import add_key
from woolly.serving.gate.authenticator import Authenticator
from woolly.serving.lifecycle import http_server
from woolly.serving.lifecycle.reload import Reloader


@pytest.mark.parametrize(
    ("had_terminal", "has_terminal", "is_needed", "does"),
    [
        (False, False, True, "reload"),  # a service
        (True, True, True, "reload"),  # kill -HUP from another terminal
        (True, False, True, "stop"),  # the terminal is gone
        (False, False, False, "stop"),  # there is nothing to read again
    ],
)
def test_sighup_reloads_unless_the_terminal_is_gone(monkeypatch, had_terminal, has_terminal, is_needed, does):
    done = []
    monkeypatch.setattr(http_server, "has_terminal", lambda: has_terminal)
    monkeypatch.setattr(http_server._Server, "handle_exit", lambda *_: done.append("stop"))
    server = object.__new__(http_server._Server)
    server.reloader = SimpleNamespace(is_needed=is_needed, reload=lambda: done.append("reload"))
    server._had_terminal = had_terminal
    server._loop = SimpleNamespace(call_soon_threadsafe=lambda call: call())
    server.handle_hangup(signal.SIGTERM, None)
    assert done == [does]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGHUP")
def test_sighup_under_nohup_reloads_on_the_event_loop(monkeypatch):
    """A signal handler runs in the midst of any line, such as one of the reloading itself."""
    done, handlers, calls = [], [], []
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_IGN)
    monkeypatch.setattr(signal, "signal", lambda number, handler: handlers.append(handler))
    server = object.__new__(http_server._Server)
    server.reloader = SimpleNamespace(is_needed=True, reload=lambda: done.append("reload"))
    server._loop = None
    http_server._handle_sighup(server)
    (handler,) = handlers
    handler(signal.SIGHUP, None)  # before the loop runs
    server._loop = SimpleNamespace(call_soon_threadsafe=calls.append)
    handler(signal.SIGHUP, None)
    assert done == []
    (call,) = calls
    call()
    assert done == ["reload"]


def test_files_are_reloaded_only_when_they_change(tmp_path):
    file, read = tmp_path / "cert.pem", []
    file.write_text("one")
    reloader = Reloader(Settings(), Authenticator((), None, 60))
    assert not reloader.is_needed
    reloader.add("certificate", [file], lambda: read.append(file.read_text()))
    reloader.check()
    assert read == [] and reloader.is_needed
    file.write_text("other")
    reloader.check()
    reloader.check()
    reloader.reload()
    assert read == ["other", "other"]
    file.unlink()
    reloader.check()  # it cannot be read: the log says so, and the earlier one stays
    file.write_text("third")
    reloader.check()
    assert read[-1] == "third"


def test_plain_key_file_is_reloaded_too(tmp_path):
    file = tmp_path / "keys"
    file.touch(0o600)
    file.write_text("first-key\n")
    settings = Settings(api_key_file=file)
    authenticator = Authenticator(settings.keys, None, 60)
    reloader = Reloader(settings, authenticator)
    file.write_text("second-key\n")
    os.utime(file, ns=(1, 1))  # a clock that stands still would hide a change of one second
    reloader.check()
    assert authenticator.identify("first-key") is None and authenticator.identify("second-key") is not None
    file.write_text("# nobody\n")
    reloader.check()
    assert authenticator.identify("second-key") is not None
    with pytest.raises(RequestError, match="has no key"):
        Settings(api_key_file=file)


def test_emptied_key_file_opens_no_server(tmp_path, monkeypatch):
    key = add_key(tmp_path / "keys.toml", "anna", limits={})
    settings = Settings(keys_file=tmp_path / "keys.toml")
    authenticator = Authenticator((), None, 60, (), settings.named_keys)
    reads = iter([settings.named_keys])
    monkeypatch.setattr(keys_file, "read_keys", lambda path: next(reads, ()))  # truncated after the first read
    reloader = Reloader(settings, authenticator)
    for _ in range(2):
        reloader.reload()
        assert authenticator.identify(key) is not None and not authenticator.is_open
    with pytest.raises(RequestError, match="no key is left"):
        authenticator.set_keys((), (), ())
    assert not authenticator.is_open
