"""From the start of a server to its end: processes of their own, with a tiny model."""

import asyncio
import contextlib
import json
import signal
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from tests.cases import fork_server
from tests.serving.conftest import SLOW_MAIN, WAIT, serving
from woolly.errors import RequestError
from woolly.serving import Settings
from woolly.serving.lifecycle import http_server

LONG = {"prompt": "sheep", "max_tokens": 200, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def public(tiny_model, tmp_path_factory):
    """A server without keys that others may reach, with a limit of requests and a page that may call it."""
    flags = ("--host", "0.0.0.0", "--rate-limit", "3", "--cors-origins", "https://ole.example", "--log-prompts")
    with serving(tiny_model, tmp_path_factory.mktemp("public"), *flags, ctx=64) as server:
        yield server


@pytest.fixture(scope="module")
def keyed(tiny_model, tmp_path_factory):
    """A server that others may reach, with keys of both kinds; its log is JSON."""
    folder = tmp_path_factory.mktemp("keyed")
    (folder / "keys").touch(0o600)
    (folder / "keys").write_text("secret-key-one\nsecret-key-two\n")
    flags = ("--host", "0.0.0.0", "--api-key", "k", "--api-key-file", str(folder / "keys"))
    with serving(tiny_model, folder, *flags, "--log-format", "json", "--log-level", "debug", ctx=64) as server:
        yield server


@pytest.fixture(scope="module")
def named(tiny_model, tmp_path_factory):
    """A server with a name of its own, and a name for its model from the environment."""
    flags = ("--allowed-hosts", "woolly.lan", "--use-optimized-inference")
    with contextlib.ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:  # only for its start: other servers begin while it runs
            patch.setenv("WOOLLY_ALIAS", "sheep")
            server = stack.enter_context(serving(tiny_model, tmp_path_factory.mktemp("named"), *flags, ctx=256))
        yield server


@contextlib.contextmanager
def streaming(server, body=LONG):
    """A stream of which the first event has come; gives a list that is filled to its end."""
    seen, started = [], threading.Event()

    def read():
        with server.client() as client, client.stream("POST", "/v1/completions", json=body) as response:
            for line in response.iter_lines():
                if line.startswith("data: "):
                    seen.append(line[6:])
                    started.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert started.wait(WAIT)
    yield seen
    reader.join(WAIT)
    assert not reader.is_alive()


def test_sigterm_finishes_running_and_rejects_new_requests(tiny_model, tmp_path):
    with serving(tiny_model, tmp_path, "--grace", str(WAIT), main=SLOW_MAIN) as server:
        with contextlib.ExitStack() as stack, server.slowly():
            seen = stack.enter_context(streaming(server))
            server.process.send_signal(signal.SIGTERM)
            server.log_with("draining")
            with server.client() as client:
                health = client.get("/health")
                late = client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})
        assert (health.status_code, health.json()["status"]) == (503, "draining")
        assert late.status_code == 503 and late.headers["retry-after"]
        assert server.process.wait(WAIT) == 0
    # Tokens that waited for a busy server come as one event, so that events do not count them.
    assert seen[-1] == "[DONE]" and json.loads(seen[-2])["choices"][0]["finish_reason"] == "length"


def test_after_the_grace_period_running_requests_are_cancelled_with_an_error(tiny_model, tmp_path):
    with serving(tiny_model, tmp_path, "--grace", "0.2", main=SLOW_MAIN) as server:
        with server.slowly(), streaming(server) as seen:
            server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(WAIT) == 0
    assert "answer_cancelled" in "".join(seen[-2:])


def test_health_is_correct_while_a_model_loads(smollm2, tmp_path):
    with serving(smollm2, tmp_path, wait=False) as server:
        states, end = [], time.monotonic() + WAIT
        while time.monotonic() < end:
            with contextlib.suppress(httpx.TransportError):
                reply = httpx.get(f"{server.url}/health", timeout=WAIT)
                states.append((reply.status_code, reply.json()["status"]))
                if reply.status_code == 200:
                    break
            time.sleep(0.01)
    assert states[-1] == (200, "ok")
    assert set(states[:-1]) <= {(503, "loading")}


def run(*arguments, timeout=WAIT):
    main = "from woolly.cli import main; main()"
    return fork_server.run(
        [sys.executable, "-c", main, "serve", *arguments], capture_output=True, text=True, timeout=timeout
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-m", "/nowhere/model.gguf"], "there is no file or model named"),
        (["-m", "{model}", "--host", "203.0.113.1"], "cannot listen at 203.0.113.1"),
        (["-m", "{model}", "--chat-template", "{{% if %}}", "--port", "0"], "template"),
        (["-m", "{model}", "--preload", "another", "--port", "0"], "unknown model 'another'"),
        (["-m", "{model}", "--models-memory", "1kB", "--port", "0"], "; unload another model, lower ctx_size, or"),
    ],
)
def test_unservable_model_gives_a_one_line_error_and_exit_code_1(tiny_model, arguments, says):
    ended = run(*(argument.format(model=tiny_model) for argument in arguments))
    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("woolly: error: ") and says in last
    assert "Traceback" not in ended.stderr


def test_invalid_option_value_gives_a_one_line_error_and_exit_code_2(tiny_model):
    ended = run("-m", str(tiny_model), "-ctk", "q5_1")
    assert ended.returncode == 2
    assert ended.stderr.startswith("woolly: error: -ctk is 'q5_1'")
    assert "Traceback" not in ended.stderr


def test_public_address_without_keys_gives_a_warning(public, keyed):
    assert "ANYONE WHO CAN REACH THIS ADDRESS" in public.log.read_text()
    assert "ANYONE" not in keyed.log.read_text()


def test_unused_keys_of_the_default_file_are_named(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("WOOLLY_HOME", str(tmp_path))
    http_server._warn_about_unused_keys(Settings())
    assert not caplog.records
    file = tmp_path / "keys.toml"
    file.touch()
    http_server._warn_about_unused_keys(SimpleNamespace(keys_file=file))
    assert not caplog.records
    http_server._warn_about_unused_keys(Settings())
    assert f"does not use the API keys in {file}: add --keys-file" in caplog.text


def test_unusable_sessions_file_is_an_error_before_the_start(tmp_path, monkeypatch):
    for name in ("_outlive_clients", "end_left_children"):  # they are for a process of its own
        monkeypatch.setattr(http_server, name, lambda: None)
    settings = Settings(models_dir=tmp_path, port=0, sessions_file=tmp_path)
    with pytest.raises(RequestError, match=r"cannot open the sessions file .*; choose another with --sessions-file"):
        http_server.run(settings)


def test_keys_and_tokens_authenticate_and_are_never_logged(keyed):
    with keyed.client() as client:
        refused = client.get("/v1/models", headers={"authorization": "Bearer wrong-key"})
        assert refused.status_code == 401 and refused.headers["www-authenticate"] == "Bearer"
        assert client.get("/metrics").status_code == 401
        for headers in ({"authorization": "Bearer secret-key-one"}, {"x-api-key": "secret-key-two"}):
            assert client.get("/v1/models", headers=headers).status_code == 200
        body = {"user_id": "ole", "api_key": "secret-key-one"}
        token = client.post("/api/v1/auth/token", json=body).json()["token"]
        assert client.get("/v1/models", headers={"authorization": f"Bearer {token}"}).status_code == 200
        log = keyed.log_with("user:ole")
    assert "secret-key" not in log and "wrong-key" not in log and token not in log
    lines = [json.loads(line) for line in log.splitlines()]
    assert any(line.get("client") == "user:ole" and line["event"] == "request" for line in lines)


def test_first_warning_is_json_like_all_others(keyed):
    lines = [json.loads(line) for line in keyed.log.read_text().splitlines()]
    assert lines[0]["level"] == "warning" and "--api-key" in lines[0]["event"]


def test_warning_before_an_invalid_setting_is_logged_as_one(tmp_path):
    ended = run("--api-key", "k", "--log-file", str(tmp_path / "none" / "log"), "--port", "0")
    assert ended.returncode != 0
    assert "woolly: warning: --api-key is visible to other users" in ended.stderr


def test_broken_model_is_reported_without_a_page_url(tmp_path):
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    ended = run("-m", str(tmp_path / "broken.gguf"), "--port", "0")
    assert ended.returncode == 1 and "broken.gguf" in ended.stderr
    assert "browser" not in ended.stderr


def test_environment_settings_reach_the_server(named):
    with named.client() as client:
        assert client.get("/v1/models").json()["data"][0]["id"] == "sheep"


def test_too_frequent_client_waits_and_configured_pages_may_call(public):
    with public.client() as client:
        body = {"prompt": "quagga", "max_tokens": 2}
        replies = [client.post("/v1/completions", json=body) for _ in range(4)]
        assert [reply.status_code for reply in replies] == [200, 200, 200, 429]
        assert replies[-1].json()["error"]["code"] == "rate_limit_exceeded"
        assert int(replies[-1].headers["retry-after"]) <= 20
        assert client.get("/health").status_code == 200
        preflight = {"origin": "https://ole.example", "access-control-request-method": "POST"}
        allowed = client.options("/v1/completions", headers=preflight)
        assert allowed.headers["access-control-allow-origin"] == "https://ole.example"
        assert "quagga" in public.log_with("quagga")


def test_legacy_command_serves_from_the_reference_backend_on_request(named, tiny_model, tmp_path):
    body = {"prompt": "sheep", "max_tokens": 4, "temperature": 0}
    with serving(tiny_model, tmp_path, "--no-optimized-inference", ctx=64) as server, server.client() as client:
        slow = client.post("/v1/completions", json=body).json()
    with named.client() as client:
        fast = client.post("/v1/completions", json=body).json()
    assert slow["choices"] == fast["choices"]


def test_page_with_a_foreign_host_is_rejected_unless_allowed(server, named):
    with server.client() as client:
        for host, status in (("evil.example", 403), ("localhost:1", 200), ("[::1]:8080", 200), ("10.0.0.1", 200)):
            assert client.get("/v1/models", headers={"host": host}).status_code == status
        assert client.get("/health", headers={"host": "evil.example"}).status_code == 200
    with named.client() as client:
        assert client.get("/v1/models", headers={"host": "woolly.lan:8080"}).status_code == 200
        assert client.get("/v1/models", headers={"host": "lan"}).status_code == 403


def test_event_is_sent_without_waiting_for_an_acknowledgement():
    async def story():
        taken = asyncio.get_running_loop().create_future()

        class Connection(asyncio.Protocol):
            def connection_made(self, transport):
                taken.set_result(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
                transport.close()

        listener = http_server._listen("127.0.0.1", 0)
        async with await asyncio.get_running_loop().create_server(Connection, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            assert await taken
            writer.close()

    asyncio.run(story())


def test_legacy_command_name_is_the_same_command():
    script = "import sys; sys.argv[0] = 'woolly-server'; from woolly.cli.commands.serve import main; main()"
    ended = fork_server.run(
        [sys.executable, "-c", script, "--port", "99999"], capture_output=True, text=True, timeout=WAIT
    )
    assert ended.returncode == 2
    assert "port is 99999; expected at most 65535" in ended.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_client_that_disconnects_during_a_write_does_not_end_the_server(named):
    status = Path(f"/proc/{named.process.pid}/status").read_text()
    ignored = int(next(line for line in status.splitlines() if line.startswith("SigIgn:")).split()[1], 16)
    assert ignored >> (signal.SIGPIPE - 1) & 1
    host, port = named.url.removeprefix("http://").split(":")
    body = json.dumps(LONG).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    for _ in range(20):
        with socket.create_connection((host, int(port)), WAIT) as client:
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            assert client.recv(64)
            # Closed with a reset, whatever is under way.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert httpx.get(f"{named.url}/health", timeout=WAIT).status_code == 200
    assert named.process.poll() is None
