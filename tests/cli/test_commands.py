"""`tokenize`, `list`, `rm`, `ps`, `run`'s structure, `show` from afar, and the page that documents all."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.cases.tiny import TINY, write_tiny
from tests.cli.terminal import woolly
from tests.store.hub import Hub
from woolly.cli.commands import remote_header
from woolly.cli.parse.options import structure
from woolly.cli.parse.usage_errors import UsageError
from woolly.errors import GGUFError, RequestError, StoreError, WoollyError

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny(TINY["granite"], tmp_path_factory.mktemp("commands") / "tiny.gguf")


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WOOLLY_HOME", str(tmp_path / "woolly"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    for name in ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "OLLAMA_MODELS", "WOOLLY_API_KEY", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_tokenize_and_detokenize_round_trip(model):
    facts = json.loads(woolly("tokenize", model, "wool ü", "--json"))
    assert facts["count"] == len(facts["ids"]) == len(facts["pieces"])
    ids = " ".join(map(str, facts["ids"]))
    assert woolly("tokenize", model, ids, "--detokenize") == "wool ü\n"
    assert woolly("tokenize", model, "-", "-d", stdin=str(facts["ids"])) == "wool ü\n"
    assert woolly("tokenize", model, "-", "--count", stdin="wool ü") == f"{facts['count']}\n"
    assert [int(line.split()[0]) for line in woolly("tokenize", model, "wool ü").splitlines()] == facts["ids"]


def test_invalid_token_ids_are_rejected(model):
    with pytest.raises(RequestError, match="--detokenize needs integers"):
        woolly("tokenize", model, "wool", "-d")
    with pytest.raises(RequestError, match=r"unknown token 999999; the vocabulary has 0 to \d+"):
        woolly("tokenize", model, "1 999999", "-d")


def test_list_and_rm_know_pulled_models(home, model):
    folder = home / "woolly" / "models"
    folder.mkdir(parents=True)
    (folder / "own.gguf").write_bytes(model.read_bytes())
    (entry,) = json.loads(woolly("list", "--json"))
    assert (entry["name"], entry["owner"], entry["bytes"]) == ("own", "woolly", model.stat().st_size)
    assert "own.gguf" in woolly("list", "--paths")
    assert woolly("plan", "own").startswith("step")  # a name of the list is a name everywhere
    assert woolly("rm", "own.gguf").startswith("removed own (")
    assert json.loads(woolly("list", "--json")) == []
    assert woolly("list") == ""
    with pytest.raises(StoreError, match="no model named 'own' was pulled"):
        woolly("rm", "own")


def test_model_is_listed_once_and_found_by_all_its_names(home, model, monkeypatch):
    folder = home / "woolly" / "models"
    folder.mkdir(parents=True)
    (folder / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(model.read_bytes())
    studio = home / ".lmstudio" / "models" / "someone" / "repo"
    studio.mkdir(parents=True)
    (studio / "same.gguf").symlink_to(folder / "SmolLM2-135M-Instruct.Q4_1.gguf")
    (entry,) = json.loads(woolly("list", "--json"))
    assert entry["name"] == "smollm2"
    stem = "SmolLM2-135M-Instruct.Q4_1"
    assert entry["aliases"] == ["smollm2-135m", stem, f"{stem}.gguf", "lmstudio:someone/repo/same.gguf"]
    assert f"smollm2-135m, {stem}, lmstudio:someone/repo/same.gguf" in woolly("list")
    for name in ("SmolLM2-135M-Instruct.Q4_1", "smollm2-135m-instruct.q4_1.gguf", "lmstudio:someone/repo/same"):
        assert woolly("plan", name).startswith("step"), name
    assert woolly("rm", "SmolLM2-135M-Instruct.Q4_1").startswith("removed smollm2 (")


def test_name_with_spaces_is_listed_quoted(home, model):
    folder = home / "woolly" / "models" / "hf" / "org" / "repo"
    folder.mkdir(parents=True)
    (folder / "my model.gguf").write_bytes(model.read_bytes())
    assert woolly("list").splitlines()[1].startswith("'hf:org/repo/my model.gguf' ")
    (entry,) = json.loads(woolly("list", "--json"))
    assert entry["name"] == "hf:org/repo/my model.gguf"
    assert woolly("plan", entry["name"]).startswith("step")
    assert woolly("run", entry["name"], "hi", "-n", "2") != ""
    assert woolly("run", entry["name"], "-n", "2", stdin="hi") != ""
    assert woolly("rm", entry["name"]).startswith("removed hf:org/repo/my model.gguf")


def test_piped_list_has_a_line_for_each_model(home, model):
    folder = home / "woolly" / "models" / "hf" / "org" / ("long" * 15)
    folder.mkdir(parents=True)
    (folder / f"{'name' * 20}.gguf").write_bytes(model.read_bytes())
    _, line = woolly("list", "--paths").splitlines()
    assert f"hf:org/{'long' * 15}/{'name' * 20}.gguf " in line


def test_ps_queries_a_server(home, monkeypatch):
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, self.headers.get("Authorization")))
            if self.headers.get("Authorization") != "Bearer key":
                self.send_error(401)
                return
            size = {"parameters": 135_000_000, "size_bytes": 98 << 20, "context_length": 8192}
            file = "SmolLM2-135M-Instruct.Q4_1"
            models = [{"name": "wool", "loaded": True, **size}, {"name": "other", "loaded": False, **size}]
            models.append(
                {"name": file, "aliases": [f"{file}.gguf", "smollm2", "smollm2-135m"], "loaded": True, **size}
            )
            stats = {"average_tokens_per_second": 42.5, "memory_usage_mb": 300.0, "cache_hit_rate": 0.5}
            data = json.dumps(models if self.path.endswith("models") else stats).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        said = woolly("ps", "--url", url + "/", "--api-key", "key")
        assert "wool" in said
        assert "other" not in said
        assert "42.5 tokens/s" in said
        line = next(line for line in said.splitlines() if line.startswith("smollm2 "))  # the name that `list` gives
        assert line.split("135M", 1)[1].split(", ") == ["  SmolLM2-135M-Instruct.Q4_1", "smollm2-135m"]
        monkeypatch.setenv("WOOLLY_API_KEY", "key,more")
        for typed in (url.removeprefix("http://"), f"{url}/v1", f"{url}/v1/", f"{url}/api/v1"):
            assert "wool" in woolly("ps", "--url", typed)
        facts = json.loads(woolly("ps", "--url", url, "--all", "--json"))
        assert [entry["name"] for entry in facts["models"]] == ["wool", "other", "SmolLM2-135M-Instruct.Q4_1"]
        with pytest.raises(RequestError, match="does not know this key"):
            woolly("ps", "--url", url, "--api-key", "wrong")
        monkeypatch.delenv("WOOLLY_API_KEY")
        (home / "key").touch(0o600)
        (home / "key").write_text("# of the team\nkey\nmore\n")
        assert "wool" in woolly("ps", "--url", url, "--api-key-file", home / "key")
        with pytest.raises(RequestError, match="requires a key; pass it with --api-key-file"):
            woolly("ps", "--url", url)
    finally:
        server.shutdown()
        server.server_close()
    with pytest.raises(RequestError, match=r"no server answers at .* \(Connection refused\); start one"):
        woolly("ps", "--url", url)
    with pytest.raises(RequestError, match="--url is"):
        woolly("ps", "--url", "ftp://localhost")
    (home / "key").write_text("\n")
    for given, says in (
        ((home / "key",), "which has no key"),
        ((home / "none",), "cannot be read: No such file"),
        ((home / "key", "--api-key", "x"), "are both given; use one of them"),
    ):
        with pytest.raises(UsageError, match=says):
            woolly("stop", "--api-key-file", *given)


def test_ps_does_not_send_the_key_to_another_host(home):
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.headers["Host"].split(":")[0], self.headers.get("Authorization")))
            self.send_response(302 if asked[-1][0] == "127.0.0.1" else 401)
            self.send_header("Location", f"http://localhost:{self.server.server_address[1]}/")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        with pytest.raises(RequestError, match="does not know this key"):
            woolly("ps", "--url", f"http://127.0.0.1:{server.server_address[1]}", "--api-key", "secret")
    finally:
        server.shutdown()
        server.server_close()
    assert asked == [("127.0.0.1", "Bearer secret"), ("localhost", None)]


def test_show_reads_the_complete_header_of_a_file_named_like_a_shard(home, model, monkeypatch):
    hub = Hub()
    monkeypatch.setattr(remote_header, "_FIRST", 1000)
    try:
        hub.repos["a/b"] = {"my-shard.gguf": model.read_bytes()}
        facts = json.loads(woolly("show", f"{hub.url}/cdn/a/b/my-shard.gguf", "--json"))
        assert facts["tensors"] == json.loads(woolly("show", model, "--json"))["tensors"]
    finally:
        hub.close()


def test_show_reads_the_header_of_a_remote_file(home, model, monkeypatch):
    hub = Hub()
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    try:
        data = model.read_bytes() + bytes(8_000_000)
        hub.repos["a/b"] = {"x-Q4_K_M.gguf": data, "no.gguf": b"GGUF" + bytes(100)}
        here = json.loads(woolly("show", model, "--json"))
        for spec in ("hf:a/b:Q4_K_M", f"{hub.url}/cdn/a/b/x-Q4_K_M.gguf"):
            hub.log.clear()
            facts = json.loads(woolly("show", spec, "--json"))
            assert facts["path"] == spec
            assert facts["file_bytes"] == len(data)
            assert facts["tensors"] == here["tensors"]
            assert facts["memory"]["fits"] is True
            assert facts["speed"]["most_tokens_per_second"] > 0
            assert [wanted for _, wanted, _ in hub.sent("cdn/")] == [f"bytes=0-{(2 << 20) - 1}"]
        assert "at most" in woolly("show", "hf:a/b")
        with pytest.raises(GGUFError, match=f"{hub.url}/cdn/a/b/no.gguf: "):
            woolly("show", f"{hub.url}/cdn/a/b/no.gguf")
        hub.ranges = False
        with pytest.raises(StoreError, match="does not support range requests"):
            woolly("show", "hf:a/b")
    finally:
        hub.close()
    with pytest.raises(StoreError, match="check the network"):
        woolly("show", f"{hub.url}/cdn/a/b/no.gguf")


def test_answer_has_the_requested_format(model, tmp_path):
    (tmp_path / "yes.gbnf").write_text('root ::= "yes" | "no"')
    (tmp_path / "schema.json").write_text('{"enum": ["red", "blue"]}')
    assert woolly("run", "-m", model, "x", "--grammar", tmp_path / "yes.gbnf").strip() in ("yes", "no")
    for schema in (tmp_path / "schema.json", '{"enum": ["red", "blue"]}'):
        assert woolly("run", model, "x", "--json-schema", schema).strip() in ('"red"', '"blue"')
    for arguments, expected in {
        ("--json-schema", tmp_path / "none.json"): "--json-schema: .*none.json cannot be read",
        ("--json-schema", "{"): "--json-schema is neither a file nor JSON: line 1",
        ("--grammar", tmp_path / "none.gbnf"): "--grammar: .* cannot be read",
        ("--grammar", tmp_path / "schema.json"): "grammar",
    }.items():
        with pytest.raises(WoollyError, match=expected):
            woolly("run", model, "x", *arguments)
    assert structure(None, None) == {}


def test_run_prints_answer_and_stats_as_json(model):
    facts = json.loads(woolly("run", "-m", model, "hello", "-n", "5", "--seed", "7", "--json"))
    assert (facts["finish_reason"], facts["answer_tokens"], facts["seed"]) == ("length", 5, 7)
    assert facts["text"] + "\n" == woolly("run", model, "hello", "-n", "5", "--seed", "7")
    assert facts["prompt_tokens"] > 5


def test_minus_one_means_until_the_end(model):
    assert json.loads(woolly("run", model, "hello", "-n", "-1", "--seed", "7", "--json"))["answer_tokens"] > 5
