"""The file of MCP servers: what it may say, and one sentence for what is wrong in it."""

import json

import pytest

from woolly.errors import RequestError
from woolly.mcp import read_config


@pytest.fixture
def read(tmp_path):
    def read(content, **environment):
        path = tmp_path / "mcp.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return read_config(path, environment)

    return read


def test_servers_are_commands_and_urls(read):
    config = read(
        {
            "mcpServers": {
                "time": {"command": "uvx", "args": ["mcp-server-time"], "env": {"TZ": "UTC"}, "timeout_ms": 1500},
                "far": {"type": "http", "url": "https://x.test/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}},
                "off": {"command": "x", "disabled": True},
                "own": {"command": "${HOME}/bin/x", "cwd": "${env:HOME}", "args": ["${NONE:-1}"], "autoApprove": []},
            }
        },
        TOKEN="t",
        HOME="/home/me",
    )
    time, far, own = config.servers
    assert (time.command, time.args, dict(time.env), time.timeout) == ("uvx", ("mcp-server-time",), {"TZ": "UTC"}, 1.5)
    assert (far.url, dict(far.headers)) == ("https://x.test/mcp", {"Authorization": "Bearer t"})
    assert (own.command, own.cwd, own.args) == ("/home/me/bin/x", "/home/me", ("1",))
    assert config.ignored == ("own.autoApprove",)
    assert [server.name for server in read({"servers": {"a": {"command": "x"}}}).servers] == ["a"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "is not valid JSON"),
        ([], "has no servers"),
        ({"mcpServers": {"a": 1}}, "a is not an object"),
        ({"mcpServers": {"a": {}}}, "either a command or a url"),
        ({"mcpServers": {"a": {"command": "x", "url": "http://x"}}}, "either a command or a url"),
        ({"mcpServers": {"a": {"url": "ws://x"}}}, "http:// or https://"),
        ({"mcpServers": {"a": {"url": "http://x", "type": "sse"}}}, "has removed"),
        ({"mcpServers": {"a": {"command": "x", "type": "http"}}}, "stdio with a command"),
        ({"mcpServers": {"a": {"command": "x", "args": "y"}}}, "list of strings"),
        ({"mcpServers": {"a": {"command": "x", "timeout_ms": True}}}, "milliseconds"),
        ({"mcpServers": {"a": {"command": "${NOT_THERE}"}}}, "not set in the environment"),
    ],
)
def test_invalid_configuration_is_named(read, content, expected):
    with pytest.raises(RequestError, match=r"mcp\.json") as error:
        read(content)
    assert expected in str(error.value)
    assert error.value.field == "mcp"


def test_secret_is_not_quoted(read):
    with pytest.raises(RequestError) as error:
        read({"mcpServers": {"a": {"command": "x", "env": {"KEY": "sesame", "N": 1}}}})
    assert "sesame" not in str(error.value)
