"""The tools of --mcp for the page: listed and called, for this server's own page alone."""

import json
import sys
from pathlib import Path

import pytest

from woolly.errors import RequestError
from woolly.serving import Settings

SERVER = str(Path(__file__).parents[3] / "mcp" / "server.py")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    servers = {"zoo": {"command": sys.executable, "args": [SERVER]}, "lost": {"command": "nonesuch-program"}}
    path = tmp_path_factory.mktemp("mcp") / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


def test_tools_are_listed_and_called(app_with, file):
    with app_with(mcp=file, cors_origins=("http://other.test",)) as client:
        listed = client.get("/mcp/tools").json()
        tool = listed["tools"][0]
        assert (tool["name"], tool["server"], tool["read_only"]) == ("zoo_add", "zoo", True)
        assert set(tool["parameters"]["properties"]) == {"a", "b"}
        assert listed["errors"] == ["the MCP server 'lost' cannot be started: there is no program 'nonesuch-program'"]
        call = {"name": "zoo_add", "arguments": '{"a": 2, "b": 3}'}
        assert client.post("/mcp/call", json=call).json() == {"text": "5", "is_error": False}
        failed = client.post("/mcp/call", json={"name": "zoo_fail"}).json()
        assert failed["is_error"]
        assert failed["text"].startswith("Error: ")
        assert "there are: zoo_add" in client.post("/mcp/call", json={"name": "x"}).json()["text"]
        # A page that may chat may not use tools.
        reply = client.post("/mcp/call", json=call, headers={"origin": "http://other.test"})
        assert reply.status_code == 403
        own = client.post("/mcp/call", json=call, headers={"origin": "http://testserver"})
        assert own.json()["text"] == "5"


def test_where_there_is_an_admin_key_others_may_not(app_with, file):
    with app_with(mcp=file, api_key=("k",), admin_key=("a",)) as client:
        assert client.get("/mcp/tools").status_code == 401
        assert client.get("/mcp/tools", headers={"authorization": "Bearer k"}).status_code == 403
        assert client.get("/mcp/tools", headers={"authorization": "Bearer a"}).json()["tools"]


def test_an_admin_key_file_that_is_emptied_later_lets_no_others_in(app_with, file, tmp_path):
    keys = tmp_path / "admins"
    keys.write_text("a\n")
    keys.chmod(0o600)
    with app_with(mcp=file, api_key=("k",), admin_key_file=keys) as client:
        keys.write_text("")
        assert client.get("/mcp/tools", headers={"authorization": "Bearer k"}).status_code == 403
        keys.unlink()
        assert client.get("/mcp/tools", headers={"authorization": "Bearer a"}).json()["tools"]


def test_without_the_option_there_are_none(client):
    assert client.get("/mcp/tools").json() == {"tools": [], "errors": []}
    reply = client.post("/mcp/call", json={"name": "x"})
    assert reply.status_code == 404
    assert "--mcp" in reply.json()["error"]["message"]


def test_a_public_server_needs_keys(file):
    with pytest.raises(RequestError, match="give keys") as error:
        Settings(mcp=file, host="0.0.0.0")
    assert error.value.field == "mcp"
    assert Settings(mcp=file, host="0.0.0.0", api_key=("k",)).mcp == file


def test_a_server_behind_a_proxy_needs_keys(file):
    proxies = ("127.0.0.1",)
    with pytest.raises(RequestError, match="without trusted_proxies") as error:
        Settings(mcp=file, trusted_proxies=proxies)
    assert error.value.field == "mcp"
    assert Settings(mcp=file, trusted_proxies=proxies, api_key=("k",)).mcp == file
    assert Settings(trusted_proxies=proxies).mcp is None


def test_a_broken_file_stops_the_start_before_the_port_is_open(tmp_path):
    with pytest.raises(RequestError, match="cannot be read"):
        Settings(mcp=tmp_path / "none.json")
