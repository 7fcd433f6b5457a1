"""`woolly chat` on a terminal: paste, history, completion, a full context."""

import json

import pytest

from tests.cases.tiny import TINY, write_tiny
from tests.cli.terminal import Terminal
from woolly.cli.chat.slash_commands import complete
from woolly.cli.terminal.keyboard import _Entries

PASTE = "\x1b[200~{}\x1b[201~"
UP = "\x1b[A"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny(TINY["granite"], tmp_path_factory.mktemp("talk") / "tiny.gguf")


def chat(model, home, *more, **environment):
    return Terminal("chat", model, "-n", "4", "-t", "1", "--seed", "1", "--ignore-eos", *more, home=home, **environment)


def answered(terminal):
    """Wait for the end of an answer and for the prompt after it; keys that come earlier are not edited."""
    terminal.until("cut: max_tokens is reached")
    terminal.until("context ")


def saved(path):
    return [m["content"] for m in json.loads(path.read_text())["messages"] if m["role"] == "user"]


def test_terminal_shows_a_prompt_and_ends_with_ctrl_d(model, tmp_path):
    with chat(model, tmp_path) as terminal:
        terminal.until("/help lists the commands")
        terminal.until(">")
        terminal.press("\x03")
        # Python sees a signal that comes just before it waits for a key only at the next one.
        terminal.until("ends the chat", again="\x03")
        terminal.press("hello\r")
        answered(terminal)
        terminal.press("\x04")
        assert terminal.ended() == 0
    history = tmp_path / "chat_history"
    assert "hello" in history.read_text()
    assert history.stat().st_mode & 0o777 == 0o600


def test_pasted_lines_are_one_message_and_one_history_entry(model, tmp_path):
    code = "Here is code:\ndef f(x):\n    return x\n\nWhat is it?"
    with chat(model, tmp_path) as terminal:
        terminal.until(">")
        terminal.press(PASTE.format(code.replace("\n", "\r")))
        terminal.press("\r")
        answered(terminal)
        terminal.press(f"{UP}\r")  # the whole entry is asked again
        answered(terminal)
        terminal.press(f"/save {tmp_path / 'chat.json'}\r")
        terminal.until("saved 4 messages")
        terminal.until("context ")
        terminal.press("\x04")
        assert terminal.ended() == 0
    assert saved(tmp_path / "chat.json") == [code, code]
    with chat(model, tmp_path) as terminal:  # and by the next chat, from the file
        terminal.until(">")
        terminal.press(f"{UP}{UP}\r")
        answered(terminal)
        terminal.press(f"/save! {tmp_path / 'chat.json'}\r")
        terminal.until("saved 2 messages")
    assert saved(tmp_path / "chat.json") == [code]


def test_quotes_and_backslashes_join_lines(model, tmp_path):
    with chat(model, tmp_path) as terminal:
        terminal.until(">")
        for typed in ('"""a\r  b"""\r', "c\\\rd\r", "e\x1b\rf\r"):
            terminal.press(typed)
            answered(terminal)
        terminal.press(f"/save {tmp_path / 'chat.json'}\r")
        terminal.until("saved 6 messages")
    assert saved(tmp_path / "chat.json") == ["a\n  b", "c\nd", "e\nf"]


def test_tab_completes_a_command(model, tmp_path):
    with chat(model, tmp_path) as terminal:
        terminal.until(">")
        terminal.press("/sta\t\r")
        terminal.until("no answer yet")


def test_full_context_asks_and_continues(model, tmp_path):
    with chat(model, tmp_path, "-c", "64") as terminal:
        terminal.until(">")
        terminal.press("wool wool wool wool\r")
        answered(terminal)
        terminal.press("more wool, more wool\r")
        terminal.until("The context of 64 tokens is full. Forget the oldest turn? [Y/n/always/compact]")
        terminal.press("n\r")
        terminal.until("/forget 1 drops the oldest turn")
        terminal.until("context ")
        terminal.press(f"{UP}\r")
        terminal.until("Forget the oldest turn? [Y/n/always/compact]")
        terminal.press("\r")
        terminal.until("the oldest turn is forgotten")
        answered(terminal)


def test_model_without_a_prompt_opens_a_chat(model, tmp_path):
    with Terminal("run", model, "-n", "4", home=tmp_path) as terminal:
        terminal.until("/help lists the commands")
        terminal.press("/quit\r")
        assert terminal.ended() == 0


def test_error_wraps_between_words_on_a_narrow_terminal(tmp_path):
    with Terminal("run", "a b", "x", "y", home=tmp_path, COLUMNS="40") as terminal:
        assert terminal.ended() == 2
        lines = terminal.until('"quotes"').splitlines()
    assert max(map(len, lines)) < 40
    assert " ".join(line.strip() for line in lines).startswith(
        "woolly: error: expected a prompt, or a model and a prompt,"
    )


def test_tab_completions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").touch()
    (tmp_path / "folder").mkdir()
    assert complete("/re") == ["/regen", "/read"]
    assert complete("/set top_") == ["top_k", "top_p", "top_n_sigma"]
    assert complete("/set parameter temp") == ["temperature"]
    assert complete("/read n") == ["notes.txt"]
    assert complete("/save ./") == ["./folder/", "./notes.txt"]
    assert complete("/read /no/such/") == []
    assert complete("/clear ") == []
    assert complete("hello /re") == []


def test_plain_history_file_is_read_too(tmp_path):
    path = tmp_path / "chat_history"
    path.write_text('old line\n"a\\nb"\n5\n')
    assert _Entries(path).read() == ["old line", "a\nb", "5"]
