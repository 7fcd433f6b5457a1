"""`woolly chat`: a conversation, its commands, and what Ctrl-C does."""

import io
import json
import os
import pty
import sys
import termios
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases.texts import write_readers
from tests.cases.tiny import TINY, write_tiny
from tests.cli.terminal import woolly
from tests.engine.test_adapters import lora, write_lora
from woolly import LLM, SamplingParams
from woolly.cli.chat.chat import Chat
from woolly.cli.chat.conversation import Conversation
from woolly.cli.chat.slash_commands import COMMANDS
from woolly.cli.terminal import answer
from woolly.cli.terminal.answer import _split
from woolly.cli.terminal.keyboard import Keyboard, no_echo
from woolly.cli.terminal.progress import print_status, visible
from woolly.errors import RequestError


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny(TINY["granite"], tmp_path_factory.mktemp("chat") / "tiny.gguf")


@pytest.fixture(scope="module")
def llm(model):
    with LLM(model, threads=1) as llm:
        yield llm


@pytest.fixture
def chat(llm):
    return Chat(llm, Conversation(SamplingParams(max_tokens=6, seed=1)), None)


def contents(chat):
    return [message["content"] for message in chat.conversation.messages]


def test_lines_of_stdin_are_answered_one_by_one(model):
    alone = woolly("chat", model, "-n", "5", "--seed", "1", stdin="hello\n")
    both = woolly("chat", model, "-n", "5", "--seed", "1", stdin="hello\n\n/quit\nnever\n")
    assert alone == both
    assert alone.endswith("\n")


def test_conversation_grows_by_question_and_answer(chat):
    chat.take("one " * 12)
    chat.take("two")
    assert [message["role"] for message in chat.conversation.messages] == ["user", "assistant"] * 2
    assert chat.last_facts["cached_tokens"] > 0  # the first turn was not computed again


def test_multiline_input_is_one_message(model, capsys, monkeypatch):
    taken = []
    monkeypatch.setattr(Chat, "take", lambda self, text: taken.append(text))
    woolly("chat", model, stdin='"""a\n  b"""\nc\\\nd\n"""e"""\n')
    assert taken == ["a\n  b", "c\nd", "e"]


def test_regen_answers_the_last_question_again(chat):
    chat.take("hello")
    first = contents(chat)
    chat.take("/regen")
    assert contents(chat) == first  # the same seed
    chat.take("/set seed 2")
    chat.take("/regen")
    assert contents(chat)[0] == "hello"
    assert len(contents(chat)) == 2
    assert contents(chat) != first


def test_saved_conversation_continues_elsewhere(chat, llm, tmp_path):
    chat.take("/system Be brief.")
    chat.take("/set temperature 0.25")
    chat.take("hello")
    chat.take(f"/save {tmp_path / 'chat.json'}")
    other = Chat(llm, Conversation(SamplingParams()), None)
    other.take(f"/load {tmp_path / 'chat.json'}")
    assert other.conversation == chat.conversation
    (tmp_path / "bare.json").write_text(
        json.dumps([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}])
    )
    other.take(f"/load {tmp_path / 'bare.json'}")
    assert (other.conversation.system, contents(other)) == ("s", ["u"])


def test_clear_drops_messages_and_keeps_the_rest(chat):
    chat.take("/system Be brief.")
    chat.take("hello")
    chat.take("/clear")
    assert contents(chat) == []
    assert chat.conversation.system == "Be brief."
    chat.take("/system none")
    assert chat.conversation.system is None


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("temperature 0", "temperature", 0),
        ("temp=0.5", "temperature", 0.5),
        ("top-k 5", "top_k", 5),
        ("max_tokens -1", "max_tokens", None),
        ("seed none", "seed", None),
        ("seed -1", "seed", None),
        ("n_predict 3", "max_tokens", 3),
        ("typical 0.5", "typical_p", 0.5),
        ("ignore_eos true", "ignore_eos", True),
        ("stop END", "stop", ("END",)),
        ('stop ["a", "b"]', "stop", ("a", "b")),
    ],
)
def test_settings_accept_the_forms_people_type(chat, text, name, value):
    chat.take(f"/set {text}")
    assert getattr(chat.conversation.params, name) == value


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/hepl", "did you mean /help?"),
        ("/temp", "unknown command /temp: did you mean /set temperature 0.2?"),
        ("/temp 0.5", "did you mean /set temperature 0.5?"),
        ("/top-k", "did you mean /set top_k 40?"),
        ("/temprature", "did you mean /set temperature 0.2?"),
        ("/set temprature 1", "unknown setting 'temprature': did you mean temperature?"),
        ("/set temperature -1", "temperature is -1; expected a number of at least 0"),
        ("/xyz", "/help lists"),
        ("/foo", "unknown command /foo: /help lists"),
        ("/set wool 3", "unknown setting 'wool'"),
        ("/set temperature", "missing name or value"),
        ("/set temperature hot", "temperature is 'hot'"),
        ("/load /no/such", "cannot be read"),
        ("/save", "missing file name"),
        ("/regen", "there is no question"),
        ("/clear all", "takes no argument"),
        ("/image", "missing image, for instance: /image photo.jpg"),
        (
            "/image x.png",
            "does not support images: no projector (mmproj file) is open with it; choose a model that does",
        ),
        ("/audio", "missing audio file, for instance: /audio talk.mp3"),
        ("/audio x.wav", "does not support audio: no projector (mmproj file) for audio is next to it"),
    ],
)
def test_chat_continues_after_an_error(chat, capsys, line, expected):
    chat.take(line)
    assert expected in capsys.readouterr().err
    assert not chat.is_over
    chat.take("/quit")
    assert chat.is_over


def test_every_documented_command_exists(chat, capsys):
    assert set(COMMANDS) == {
        *(
            "system",
            "clear",
            "regen",
            "undo",
            "forget",
            "compact",
            "read",
            "edit",
            "save",
            "load",
            "model",
            "show",
            "set",
            "stats",
        ),
        *("help", "quit", "tools", "image", "audio", "lora"),
    }
    chat.take("/stats")
    chat.take("hello")
    chat.take("/stats")
    chat.take("/help")
    said = capsys.readouterr().err
    assert "no answer yet" in said
    assert "tokens" in said
    assert "/regen" in said


def test_ctrl_c_keeps_partial_answer_and_chat_continues(chat, monkeypatch, capsys):
    def interrupted(stream, timing, kept):
        kept.append(next(stream).text)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(answer, "show_plain", interrupted)
        chat.take("hello")
    assert [message["role"] for message in chat.conversation.messages] == ["user", "assistant"]
    assert "(stopped)" in capsys.readouterr().err
    chat.take("again")
    assert len(contents(chat)) == 4


def test_unanswerable_question_is_not_kept(chat, capsys):
    chat.take("x" * 2000)
    assert "context" in capsys.readouterr().err
    assert contents(chat) == []


def test_end_of_context_is_reported(llm, capsys):
    chat = Chat(llm, Conversation(SamplingParams(max_tokens=500, seed=1, ignore_eos=True)), None)
    chat.take("x" * 450)
    assert "(cut: the context of 512 tokens is full" in capsys.readouterr().err
    chat = Chat(llm, Conversation(SamplingParams(max_tokens=5, seed=1, ignore_eos=True)), None)
    chat.take("x")
    assert "(cut: max_tokens is reached)" in capsys.readouterr().err


def test_context_meter_follows_every_change_of_the_conversation(model, tmp_path, capsys):
    other = write_tiny(replace(TINY["granite"], context=1024), tmp_path / "other.gguf")
    chat = Chat(LLM(model, threads=1), Conversation(SamplingParams(max_tokens=6, seed=1)), None)
    try:
        assert chat.meter == ""
        chat.take("one " * 40)
        chat.take("two")
        whole = chat.n_tokens
        assert chat.meter == f"context {whole / 512:.0%} full"
        chat.take("/forget 1")
        assert 0 < chat.n_tokens < whole / 2
        chat.take("/load x")  # refused: nothing changes
        chat.take(f"/model {other}")
        assert chat.llm.ctx == 1024 and chat.meter == f"context {chat.n_tokens / 1024:.0%} full"
        chat.take("three")
        chat.take("/clear")
        assert chat.meter == "" and chat.n_tokens == 0
        capsys.readouterr()
        chat.take("/stats")
        assert "context  0 of 1024 tokens" in capsys.readouterr().err
    finally:
        chat.llm.close()


def test_model_without_text_output_is_rejected(chat, llm, tmp_path, capsys):
    embedder = write_readers(tmp_path, "embedder") / "embedder.gguf"
    says = "embedder returns embeddings and cannot chat; use `woolly embed`"
    with pytest.raises(RequestError, match=says):
        woolly("chat", embedder, stdin="hi\n")
    chat.take(f"/model {embedder}")
    assert says in capsys.readouterr().err
    assert chat.llm is llm and not llm.is_closed


def test_keys_are_not_echoed_while_an_answer_is_drawn(monkeypatch):
    ours, theirs = pty.openpty()

    def echoes():
        return bool(termios.tcgetattr(theirs)[3] & termios.ECHO)

    with os.fdopen(theirs, "r") as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        assert echoes()
        with pytest.raises(KeyboardInterrupt), no_echo():
            assert not echoes()
            raise KeyboardInterrupt
        assert echoes()
    os.close(ours)


@given(
    st.lists(
        st.sampled_from(["text", "", "- item", "```python", "```", "~~~~", "    code", "# head", "| a |"]), max_size=12
    )
)
def test_blocks_are_cut_only_outside_of_code(lines):
    text = "\n".join(lines)
    done, rest = _split(text)
    assert [line for line in f"{done}\n{rest}".split("\n") if line] == [line for line in lines if line]
    fence = None
    for line in done.split("\n"):
        if fence is None and line[:3] in ("```", "~~~"):
            fence = line[: len(line) - len(line.lstrip(line[0]))]
        elif fence is not None and line.startswith(fence) and not line.strip(fence[0]):
            fence = None
    assert fence is None


def test_model_output_cannot_control_the_terminal(capsys):
    assert visible("a\x1b[31mb\x07\tc\nd\x9be") == "a\\x1b[31mb\\x07\tc\nd\\x9be"
    print_status("woolly: error: the server said \x1b]0;title\x07")
    assert capsys.readouterr().err == "woolly: error: the server said \\x1b]0;title\\x07\n"


@pytest.mark.parametrize("text", ["5", "true", '{"a": 1}', "[1, 2]", "[" * 100_000])
def test_non_text_stop_is_rejected_or_taken_literally(text):
    conversation = Conversation(SamplingParams())
    if text[-1] == "[":
        conversation.set("stop", text)
        assert conversation.params.stop == (text,)
        return
    with pytest.raises(RequestError, match="stop is "):
        conversation.set("stop", text)
    assert conversation.params == SamplingParams()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"messages": [], "settings": null}', "the settings in .* are null; expected"),
        ('{"messages": [], "settings": [1]}', r"the settings in .* are \[1\]; expected"),
        ('{"messages": [], "settings": {"stop": 5}}', "stop is 5"),
        ('{"messages": [], "settings": {"temperature": -1}}', "temperature is -1; expected a number of at least 0"),
        (
            '{"messages": [], "settings": {"temperature": 1%s}}' % ("0" * 400),
            "temperature is 10+; ",
        ),
        ('{"messages": [], "system": 5}', "the system prompt in .* is 5; expected a string"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_file_with_a_bad_part_leaves_the_conversation_unchanged(tmp_path, text, expected):
    conversation = Conversation(SamplingParams(), "s", [{"role": "user", "content": "u"}])
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(RequestError, match=expected):
        conversation.load(tmp_path / "x.json")
    assert conversation == Conversation(SamplingParams(), "s", [{"role": "user", "content": "u"}])


def test_invalid_utf8_is_saved_too(tmp_path):
    conversation = Conversation(SamplingParams(), None, [{"role": "user", "content": "ü\udcff"}])
    conversation.save(tmp_path / "x.json")
    other = Conversation(SamplingParams())
    other.load(tmp_path / "x.json")
    assert other == conversation


def test_impossible_path_gives_a_one_line_error():
    conversation = Conversation(SamplingParams())
    for path in ("a\0b", "~no-such-person-here/x"):
        with pytest.raises(RequestError, match="cannot be written"):
            conversation.save(Path(path))
        with pytest.raises(RequestError, match=r"cannot be read|is not JSON"):
            conversation.load(Path(path))


def test_regen_keeps_question_and_answer_if_none_can_start(chat, capsys):
    chat.take("hello")
    before = contents(chat)
    chat.take("/system " + "x" * 2000)
    chat.take("/regen")
    assert "context" in capsys.readouterr().err
    assert contents(chat) == before


@pytest.mark.parametrize(
    ("typed", "messages"),
    [('"""a\nb', ["a\nb"]), ("a\\\n", ["a"]), ("a\\\nb\\\n", ["a\nb"]), ("x\n", ["x"]), ("", [])],
)
def test_end_of_input_ends_a_multiline_message(monkeypatch, typed, messages):
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    keyboard = Keyboard(None)
    assert list(iter(lambda: keyboard.read("> ", ". "), None)) == messages


def test_note_next_to_the_prompt_disappears_with_its_text():
    noted = []
    keyboard = Keyboard(None)
    keyboard._session = SimpleNamespace(prompt=lambda *_, rprompt, **__: noted.append(rprompt) or "x")
    for note in ("context 14% full", ""):
        keyboard.read("> ", ". ", note)
    # None would keep that of the prompt before.
    assert noted == [[("class:note", "context 14% full")], [("class:note", "")]]


def test_adapters_can_be_changed_in_a_chat(tmp_path):
    write_lora(tmp_path / "french.gguf", lora(0))
    with LLM(write_tiny(TINY["llama"], tmp_path / "tiny.gguf"), threads=1) as llm:
        chat = Chat(llm, Conversation(SamplingParams(max_tokens=6, temperature=0, adapters={})), None)
        commands = [
            ("", "no adapters; /lora add FILE takes a LoRA file in GGUF"),
            (f"add {tmp_path / 'french.gguf'}", "french  1"),
            ("scale french 0.5", "french  0.5"),
            ("remove french", "no adapters; /lora add FILE takes a LoRA file in GGUF"),
        ]
        for text, shown in commands:
            assert COMMANDS["lora"].run(chat, text) == shown
        for text, sentence in (("scale french much", "expected a number"), ("french", "expected /lora")):
            with pytest.raises(RequestError, match=sentence):
                COMMANDS["lora"].run(chat, text)
