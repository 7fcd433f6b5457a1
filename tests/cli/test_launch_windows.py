"""The server that `woolly launch` starts on Windows, whose Ctrl-C goes to a group of processes."""

import subprocess
from types import SimpleNamespace

import pytest

from woolly.cli.launch import server


@pytest.mark.parametrize("flag", [None, 0x200])
def test_ctrl_c_of_the_agent_does_not_reach_the_server(flag, tmp_path, monkeypatch):
    given = {}

    def start(command, **options):
        given.update(options)
        return SimpleNamespace(terminate=lambda: None, wait=lambda seconds: 0)

    if flag is None:
        monkeypatch.delattr(subprocess, "CREATE_NEW_PROCESS_GROUP", raising=False)
    else:
        monkeypatch.setattr(subprocess, "CREATE_NEW_PROCESS_GROUP", flag, raising=False)
    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(server, "_health", lambda url: "ok")
    with server.start_server(["woolly"], "http://127.0.0.1:1", tmp_path / "log", None):
        pass
    assert (given["start_new_session"], given["creationflags"]) == (True, flag or 0)
