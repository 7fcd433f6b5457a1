"""Faults of a person or a machine: characters that cannot be shown, options given twice, memory that is not there."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import unquote

import pytest

from tests.cases import fork_server
from tests.cli.terminal import Terminal, woolly
from woolly import LLM, SamplingParams
from woolly.cli.app import main
from woolly.cli.chat.chat import Chat
from woolly.cli.chat.conversation import Conversation
from woolly.cli.parse.usage_errors import UsageError
from woolly.errors import RequestError


def run(*arguments, **environment):
    command = [sys.executable, "-m", "woolly.cli", *map(str, arguments)]
    environment = {**os.environ, **environment}
    return fork_server.run(command, stdin=subprocess.DEVNULL, capture_output=True, env=environment, timeout=120)


def test_unsupported_terminal_character_is_escaped(tiny_model, tmp_path):
    ids = "".join(f"{chr(c)}" for c in (0x4F60, 0x597D, 0xE9))
    (tmp_path / "text").write_text(ids)
    done = run("tokenize", tiny_model, "-d", *_ids(tiny_model, ids), PYTHONIOENCODING="latin-1")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == b"\\u4f60\\u597d\xe9\n"
    quoted = "\u201cIt\u2019s\u2026\u201d"  # typographic signs, as a typewriter has them
    done = run("tokenize", tiny_model, "-d", *_ids(tiny_model, quoted), PYTHONIOENCODING="latin-1")
    assert done.stdout == b'"It\'s..."\n'
    done = run("run", "/no/\u4f60.gguf", "x", PYTHONIOENCODING="latin-1")
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
    assert b"\\u4f60.gguf" in done.stderr


def test_context_too_large_for_memory_error_names_the_flag(tiny_model):
    for command in (["run", tiny_model, "x"], ["chat", tiny_model]):
        done = run(*command, "-c", 10_000_000_000)
        assert (done.returncode, done.stdout) == (1, b"")
        assert b"of cache for 10000000000 tokens), but" in done.stderr
        assert done.stderr.endswith(b"are available; lower -c or --weight-memory, or choose a smaller model\n")


def test_preset_applies_to_options_not_given(tiny_model, tmp_path):
    (tmp_path / "presets.toml").write_text(
        f"[{tiny_model.stem}]\nmax_tokens = 3\nignore_eos = true\n[long]\nmax_tokens = 7\n"
    )

    def n_tokens(*flags):
        done = run("run", tiny_model, "hi", "--json", "--ctx", 256, *flags, WOOLLY_HOME=str(tmp_path))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["answer_tokens"]

    assert n_tokens() == 3
    assert n_tokens("-n", 5) == 5
    assert n_tokens("--preset", "long", "--ignore-eos") == 7
    done = run("run", tiny_model, "hi", "--preset", "short", WOOLLY_HOME=str(tmp_path))
    assert done.returncode == 1 and b"there is no preset named 'short'; known:" in done.stderr


def _ids(model, text):
    with LLM(model, threads=1) as llm:
        return [",".join(map(str, llm.tokenize(text, add_special=False)))]


def test_every_file_of_a_prompt_is_read(tiny_model, tmp_path):
    (tmp_path / "a").write_text("one\n")
    (tmp_path / "b").write_text("two\n")
    asked = ("-n", "6", "--seed", "1")
    both = woolly("run", tiny_model, "-f", tmp_path / "a", "-f", tmp_path / "b", "three", *asked)
    assert both == woolly("run", tiny_model, "one\n\ntwo\n\nthree", *asked)
    with pytest.raises(UsageError, match="standard input is used twice"):
        woolly("run", tiny_model, "-f", "-", "-f", "-", "x")


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        ("run -m A -m B x", "takes one of -m A and -m B"),
        ("run A x --temp 0.5 --temperature 0.7", "takes one of --temp 0.5 and --temperature 0.7"),
        ("run A x -n5 -n 6", "takes one of -n 5 and -n 6"),
        ("run A x -c 5 --ctx-size 6", "takes one of -c 5 and --ctx-size 6"),
        ("serve -m A -m B", "takes one of -m A and -m B"),
        ("chat A --history --no-history", "takes one of --history and --no-history"),
    ],
)
def test_conflicting_values_of_one_option_are_rejected(line, reported):
    with pytest.raises(UsageError) as error:
        woolly(*line.split())
    assert reported in str(error.value)


def test_bench_measures_every_model(tiny_model, tmp_path):
    other = tmp_path / "other.gguf"
    other.write_bytes(tiny_model.read_bytes())
    out = woolly("bench", "-m", tiny_model, "-m", other, "-p", "4", "-n", "0", "-r", "1", "-o", "csv")
    assert [str(path) in out for path in (tiny_model, other)] == [True, True]
    table = woolly("bench", "-m", tiny_model, "-m", other, "-p", "4", "-n", "0", "-r", "1", "-o", "table")
    assert "other.gguf" in [line.split()[0] for line in table.splitlines() if " pp4 " in line]


@pytest.mark.parametrize(
    ("line", "code", "reported"),
    [
        ("run MODEL x --temp abc", 2, "--temp is 'abc'"),
        ("serve --port 99999", 2, "--port is 99999; expected at most 65535"),
        ("serve --parallel 0", 2, "--parallel is 0; expected at least 1"),
    ],
)
def test_error_names_the_option_as_typed(line, code, reported, tiny_model, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["woolly", *line.replace("MODEL", str(tiny_model)).split()])
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == code
    assert reported in capsys.readouterr().err


def test_out_of_memory_gives_a_one_line_error(monkeypatch, capsys):
    def refused():
        raise MemoryError("std::bad_alloc")

    monkeypatch.setitem(main.__globals__, "app", refused)
    with pytest.raises(SystemExit) as ended:
        main()
    reported = capsys.readouterr().err
    assert ended.value.code == 1
    assert reported.startswith("woolly: error: the system refused memory; ")
    assert reported.count("\n") == 1


def test_partial_utf8_token_is_printed_once(tiny_model):
    (line,) = (line for line in woolly("tokenize", tiny_model, "\u4f60", "--no-special").splitlines()[:1])
    assert line.endswith("'\\xe4'")


def test_timings_are_printed_next_to_the_text(tiny_model, capfd):
    done = run("run", tiny_model, "wool", "-n", "6", "--seed", "1", "-v")
    reported = done.stderr.decode()
    assert "the answer is cut after 6 tokens; -n asks for more" in reported
    assert "answer   6 tokens" in reported
    assert "first token after" in reported


def test_truncated_json_is_reported_in_every_output_mode(tiny_model):
    done = run("run", tiny_model, "wool", "-n", "3", "--seed", "1", "--grammar", "root ::= [a-z]{40}")
    assert "the answer is cut after 3 tokens; -n asks for more" in done.stderr.decode()


def test_truncated_answer_is_marked_on_a_terminal(tiny_model, tmp_path):
    with Terminal("run", tiny_model, "wool", "-n", "2", "--ignore-eos", home=tmp_path) as terminal:
        terminal.until("the answer is cut after 2 tokens")
        assert terminal.ended() == 0


def test_long_prompt_error_says_how_far_the_context_can_be_raised(tiny_model):
    with LLM(tiny_model, threads=1, ctx=32) as llm:
        limit = 512
        with pytest.raises(RequestError, match=f"shorten it, or raise ctx, at most to {limit}$"):
            llm.generate("x" * 100)
    with LLM(tiny_model, threads=1) as llm, pytest.raises(RequestError, match=r"shorten it$"):
        llm.generate("x" * 9000)


@pytest.fixture
def chat(tiny_model):
    with LLM(tiny_model, threads=1, ctx=96) as llm:
        yield Chat(llm, Conversation(SamplingParams(max_tokens=4, seed=1), "Be brief."), None)


def users(messages):
    return [message["content"] for message in messages if message["role"] == "user"]


def test_oldest_turns_are_dropped_but_saved(chat, tmp_path, capsys):
    for word in ("one", "two", "three"):
        chat.take(f"{word} wool wool")
    assert "/forget" in capsys.readouterr().err
    assert "three wool wool" not in users(chat.conversation.messages)
    chat.take("/forget auto")
    chat.take("three wool wool")
    said = capsys.readouterr().err
    assert "forgotten)" in said
    assert users(chat.conversation.messages) == ["one wool wool", "two wool wool", "three wool wool"]
    sent = chat.conversation.all_messages
    assert sent[0] == {"role": "system", "content": "Be brief."}
    assert "one wool wool" not in users(sent)
    chat.take(f"/save {tmp_path / 'x.json'}")
    other = Conversation(SamplingParams())
    other.load(tmp_path / "x.json")
    assert other.all_messages == sent
    assert len(other.messages) == 6


def test_turns_are_dropped_by_number(chat, capsys):
    chat.take("/forget 1")
    chat.take("hello")
    chat.take("/forget 2")
    chat.take("/forget 1")
    said = capsys.readouterr().err
    assert "there is no turn to forget" in said
    assert "from 1 to 1" in said
    assert "1 turn forgotten, 0 left" in said
    chat.take("/regen")
    assert "there is no question" in capsys.readouterr().err
    chat.take("hello")
    chat.take("/regen")
    assert len(chat.conversation.messages) == 4


def test_file_is_attached_to_the_next_message(chat, tmp_path):
    (tmp_path / "notes").write_text("a\n\nb\n")
    chat.take(f"/read {tmp_path / 'notes'}")
    chat.take("hello")
    chat.take("again")
    assert users(chat.conversation.messages) == ["a\n\nb\n\nhello", "again"]


def test_command_names_of_other_programs_work(chat, capsys):
    chat.take("/set parameter temperature 0.5")
    chat.take("/set system Be long.")
    chat.take("/show")
    chat.take("/show parameters")
    assert chat.conversation.params.temperature == 0.5
    assert chat.conversation.system == "Be long."
    said = capsys.readouterr().err
    assert "architecture  " in said
    assert "woolly:" not in said


def test_file_is_overwritten_only_on_request(chat, tmp_path, capsys):
    path = tmp_path / "x.json"
    path.write_text("mine")
    chat.take(f"/save {path}")
    assert f"/save! {path} overwrites it" in capsys.readouterr().err
    chat.question = lambda _: "n"
    chat.take(f"/save {path}")
    assert path.read_text() == "mine"
    chat.take(f"/save! {path}")
    assert path.read_text() != "mine"
    chat.take("hello")
    chat.take(f"/save {path}")  # its own file
    assert "saved 2 messages" in capsys.readouterr().err


def test_editor_writes_a_message(chat, tmp_path, monkeypatch, capsys):
    chat.take("/edit")
    assert "/edit needs a terminal" in capsys.readouterr().err
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsleep 0.1\nprintf "from\\nan editor\\n" > "$1"\ntouch -d "+1 minute" "$1"\n')
    editor.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(editor))
    chat.question = lambda _: ""
    chat.take("/edit")
    assert users(chat.conversation.messages) == ["from\nan editor"]


def test_chat_continues_with_another_model(chat, tiny_model, tmp_path, capsys):
    other = tmp_path / "other.gguf"
    other.write_bytes(tiny_model.read_bytes())
    chat.take("hello")
    chat.take("/model /no/such.gguf")
    chat.take(f"/model {other}")
    chat.take("hello")
    said = capsys.readouterr().err
    assert "no such" in said.lower() or "there is no" in said
    assert "model: other.gguf" in said
    assert len(chat.conversation.messages) == 4
    chat.llm.close()


def test_stop_unloads_the_models_of_a_server(monkeypatch):
    held = {"wool": True, "org/other.gguf": True, "third": False}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer([{"name": name, "aliases": [f"{name}-alias"], "loaded": on} for name, on in held.items()])

        def do_POST(self):
            held[unquote(self.path.split("/")[-2])] = False
            self.answer({"success": True})

        def answer(self, body):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        url = f"127.0.0.1:{server.server_address[1]}"
        with pytest.raises(RequestError, match=r"'third' is not loaded at .*: loaded are wool, org/other.gguf"):
            woolly("stop", "third", "--url", url)
        assert woolly("stop", "wool-alias", "--url", url) == "wool is unloaded\n"
        assert held == {"wool": False, "org/other.gguf": True, "third": False}
        assert json.loads(woolly("stop", "--url", url, "--json"))["unloaded"] == ["org/other.gguf"]
        assert woolly("stop", "--url", url) == ""
        server.shutdown()
    assert not any(held.values())


def test_tables_wrap_between_words_on_a_narrow_terminal(tiny_model, tmp_path):
    for command in (("show",), ("bench", "-p", "4", "-n", "0", "-r", "1")):
        with Terminal(command[0], tiny_model, *command[1:], home=tmp_path, COLUMNS="60") as terminal:
            shown = terminal.rest()
        assert max(map(len, shown.replace(str(tiny_model), "").splitlines())) <= 60, shown
        words = {"show": ("llama.attention.layer_norm_rms_epsilon", "the,"), "bench": ("test  threads", "repetition")}
        assert all(word in shown for word in words[command[0]]), shown


def test_too_short_text_error_names_the_largest_window(tiny_model, tmp_path):
    (tmp_path / "text").write_text("wool " * 20)
    n = len(json.loads(woolly("tokenize", tiny_model, "wool " * 20, "--json"))["ids"])
    with pytest.raises(RequestError) as error:
        woolly("perplexity", tiny_model, tmp_path / "text", "-c", "256")
    window = int(str(error.value).rpartition(" ")[2])
    assert 0 <= n // 2 - window < 3
    woolly("perplexity", tiny_model, tmp_path / "text", "-c", str(window))
