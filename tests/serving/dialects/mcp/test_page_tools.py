"""The tools of --mcp for the page: listed and called, for this server's own page alone."""

import json
import sys
import time
from pathlib import Path

import pytest

from tests.serving.conftest import WAIT
from woolly.errors import RequestError
from woolly.serving import Settings

SERVER = str(Path(__file__).parents[3] / "mcp" / "server.py")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    servers = {"zoo": {"command": sys.executable, "args": [SERVER]}, "lost": {"command": "nonesuch-program"}}
    path = tmp_path_factory.mktemp("mcp") / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


def settled(client, **headers):
    """Response of /mcp/tools once no server is starting."""
    end = time.monotonic() + WAIT
    while True:
        listed = client.get("/mcp/tools", headers=headers).json()
        if all(server["state"] != "starting" for server in listed["servers"]):
            return listed
        assert time.monotonic() < end
        time.sleep(0.02)


def test_tools_are_listed_and_called(app_with, file):
    with app_with(mcp=file, cors_origins=("http://other.test",)) as client:
        listed = settled(client)
        tool = listed["tools"][0]
        assert (tool["name"], tool["server"], tool["read_only"]) == ("zoo_add", "zoo", True)
        assert set(tool["parameters"]["properties"]) == {"a", "b"}
        zoo, lost = listed["servers"]
        assert zoo == {"name": "zoo", "state": "up", "reason": None}
        assert (lost["name"], lost["state"]) == ("lost", "failed")
        assert lost["reason"] == "cannot start MCP server 'lost': program 'nonesuch-program' not found"
        call = {"name": "zoo_add", "arguments": '{"a": 2, "b": 3}'}
        assert client.post("/mcp/call", json=call).json() == {"text": "5", "is_error": False}
        failed = client.post("/mcp/call", json={"name": "zoo_fail"}).json()
        assert failed["is_error"]
        assert failed["text"].startswith("Error: ")
        assert "available tools: zoo_add" in client.post("/mcp/call", json={"name": "x"}).json()["text"]
        # A page that may chat may not use tools.
        reply = client.post("/mcp/call", json=call, headers={"origin": "http://other.test"})
        assert reply.status_code == 403
        own = client.post("/mcp/call", json=call, headers={"origin": "http://testserver"})
        assert own.json()["text"] == "5"


def test_servers_start_with_the_app_and_requests_start_none(app_with, tmp_path):
    """The program waits for a file before it answers, and writes a line at each start."""
    starts, gate, file = tmp_path / "starts", tmp_path / "gate", tmp_path / "mcp.json"
    code = (
        f"import runpy, sys, time; from pathlib import Path; print('begun', file=open({str(starts)!r}, 'a'))\n"
        f"while not Path({str(gate)!r}).exists(): time.sleep(0.02)\n"
        f"if Path({str(gate)!r}).read_text() == 'fail': sys.exit('the gate is shut')\n"
        f"runpy.run_path({SERVER!r}, run_name='__main__')"
    )
    slow = {"command": sys.executable, "args": ["-c", code], "timeout_ms": 1000 * WAIT}
    file.write_text(json.dumps({"mcpServers": {"slow": slow}}))
    with app_with(mcp=file) as client:
        end = time.monotonic() + WAIT
        while not starts.exists() and time.monotonic() < end:  # nobody has asked
            time.sleep(0.02)
        starting = {"name": "slow", "state": "starting", "reason": None}
        assert client.get("/mcp/tools").json() == {"tools": [], "servers": [starting]}
        gate.write_text("fail")
        (failed,) = settled(client)["servers"]
        assert failed["state"] == "failed"
        assert "the gate is shut" in failed["reason"]
        assert client.get("/mcp/tools").json()["servers"] == [failed]
        assert starts.read_text().count("begun") == 1
        gate.write_text("open")
        assert "unknown MCP server 'fast'; available: slow" in client.post("/mcp/start", json={"server": "fast"}).text
        again = client.post("/mcp/start", json={"server": "slow"}).json()
        assert again["servers"] == [{**starting, "state": "up"}]
        assert again["tools"]
        assert starts.read_text().count("begun") == 2
        assert client.post("/mcp/start", json={"server": "slow"}).json() == again  # it runs
        assert starts.read_text().count("begun") == 2


def test_starting_server_ends_with_the_app(app_with, tmp_path):
    pid, file = tmp_path / "pid", tmp_path / "mcp.json"
    code = f"import os, time; print(os.getpid(), file=open({str(pid)!r}, 'w'), flush=True); time.sleep(6000)"
    silent = {"command": sys.executable, "args": ["-c", code], "timeout_ms": 6_000_000}
    file.write_text(json.dumps({"mcpServers": {"silent": silent}}))
    with app_with(mcp=file) as client:
        end = time.monotonic() + WAIT
        while not (pid.exists() and pid.read_text().endswith("\n")) and time.monotonic() < end:
            time.sleep(0.02)
        assert client.get("/mcp/tools").json()["servers"][0]["state"] == "starting"
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()


def test_with_an_admin_key_other_keys_are_rejected(app_with, file):
    with app_with(mcp=file, api_key=("k",), admin_key=("a",)) as client:
        assert client.get("/mcp/tools").status_code == 401
        assert client.get("/mcp/tools", headers={"authorization": "Bearer k"}).status_code == 403
        assert settled(client, authorization="Bearer a")["tools"]


def test_keys_without_an_admin_key_disable_tools(app_with, tmp_path, caplog):
    file, started = tmp_path / "mcp.json", tmp_path / "started"
    program = {"command": sys.executable, "args": ["-c", f"open({str(started)!r}, 'w')"]}
    file.write_text(json.dumps({"mcpServers": {"zoo": program}}))
    own = {"authorization": "Bearer k"}
    with caplog.at_level("WARNING", "woolly"), app_with(mcp=file, api_key=("k", "l")) as client:
        for reply in (
            client.get("/mcp/tools", headers=own),
            client.post("/mcp/call", json={"name": "zoo_add"}, headers=own),
            client.post("/mcp/start", json={"server": "zoo"}, headers=own),
        ):
            assert reply.status_code == 403
            assert "--admin-key" in reply.json()["error"]["message"]
    assert not started.exists()
    assert "--mcp has no effect" in caplog.text


def test_emptied_admin_key_file_admits_no_others(app_with, file, tmp_path):
    keys = tmp_path / "admins"
    keys.write_text("a\n")
    keys.chmod(0o600)
    with app_with(mcp=file, api_key=("k",), admin_key_file=keys) as client:
        keys.write_text("")
        assert client.get("/mcp/tools", headers={"authorization": "Bearer k"}).status_code == 403
        keys.unlink()
        assert settled(client, authorization="Bearer a")["tools"]


def test_without_the_option_there_are_no_tools(client):
    assert client.get("/mcp/tools").json() == {"tools": [], "servers": []}
    reply = client.post("/mcp/call", json={"name": "x"})
    assert reply.status_code == 404
    assert "--mcp" in reply.json()["error"]["message"]


def test_public_server_needs_keys(file):
    with pytest.raises(RequestError, match="set admin_key") as error:
        Settings(mcp=file, host="0.0.0.0")
    assert error.value.field == "mcp"
    assert Settings(mcp=file, host="0.0.0.0", api_key=("k",)).mcp == file


def test_server_behind_a_proxy_needs_keys(file):
    proxies = ("127.0.0.1",)
    with pytest.raises(RequestError, match="without trusted_proxies") as error:
        Settings(mcp=file, trusted_proxies=proxies)
    assert error.value.field == "mcp"
    assert Settings(mcp=file, trusted_proxies=proxies, api_key=("k",)).mcp == file
    assert Settings(trusted_proxies=proxies).mcp is None


def test_broken_file_stops_the_start_before_the_port_is_open(tmp_path):
    with pytest.raises(RequestError, match="cannot read"):
        Settings(mcp=tmp_path / "none.json")
