"""Sources of the prompt of `woolly run`: arguments, options, files, and piped input."""

import os
import socket
import subprocess
import sys

import pytest

from tests.cases.pdfs import write_pdf
from tests.cases.tiny import TINY, write_tiny
from tests.cli.terminal import woolly
from woolly import LLM
from woolly.cli.parse import prompt as prompts
from woolly.cli.parse.prompt import model_and_prompt, with_file_names
from woolly.errors import RequestError, StoreError, WoollyError


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_tiny(TINY["granite"], tmp_path_factory.mktemp("prompt") / "tiny.gguf"))


@pytest.fixture
def stdin(monkeypatch):
    """Makes a file descriptor this process's standard input."""
    opened = []

    def use(number):
        opened.append(os.fdopen(number, encoding="utf-8"))
        monkeypatch.setattr(sys, "stdin", opened[-1])

    yield use
    for file in opened:
        file.close()


def piped(data):
    ours, theirs = os.pipe()
    os.write(theirs, data)
    os.close(theirs)
    return ours


@pytest.mark.parametrize(
    ("words", "text", "data", "expected"),
    [
        (["ask"], None, b"a file\n", "a file\n\nask"),
        (["ask"], None, b"", "ask"),
        (["ask"], None, b" \n", "ask"),
        (["-"], None, b"a\n\n", "a\n"),
        ([], None, b"a\n", "a"),
        ([], "ask", b"a", "a\n\nask"),
    ],
)
def test_piped_text_goes_before_the_prompt(model, stdin, words, text, data, expected):
    stdin(piped(data))
    assert model_and_prompt(words, model, text) == (model, expected)


def test_file_as_stdin_goes_before_the_prompt(model, stdin, tmp_path):
    (tmp_path / "x").write_text("a\n")
    stdin(os.open(tmp_path / "x", os.O_RDONLY))
    assert model_and_prompt([model, "ask"], None, None) == (model, "a\n\nask")


def test_dev_null_is_no_input(model, stdin):
    stdin(os.open(os.devnull, os.O_RDONLY))
    assert model_and_prompt([model, "ask"], None, None) == (model, "ask")
    with pytest.raises(RequestError, match="missing prompt after it"):
        model_and_prompt([model], None, None)


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_silent_open_pipe_does_not_block_the_prompt(model, stdin, monkeypatch, capsys, kind):
    monkeypatch.setattr(prompts, "_TOLD_AFTER", 0.02)
    monkeypatch.setattr(prompts, "_PATIENCE", 0.05)
    if kind == "pipe":
        ours, theirs = os.pipe()
    else:
        pair = socket.socketpair()
        ours, theirs = (end.detach() for end in pair)
    stdin(ours)
    try:
        assert model_and_prompt([model, "ask"], None, None) == (model, "ask")
    finally:
        os.close(theirs)
    reported = capsys.readouterr().err.splitlines()
    assert "waiting for standard input" in reported[0]
    assert "nothing came on standard input in 0.05 s, so it is ignored" in reported[1]


def test_closed_stdin_is_no_input(model, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert model_and_prompt([model, "ask"], None, None) == (model, "ask")
    with pytest.raises(RequestError, match="missing prompt after it"):
        model_and_prompt([model], None, None)


def test_piped_text_is_joined_by_the_command(model):
    asked = ("-n", "6", "--seed", "1")
    joined = woolly("run", model, "one\n\ntwo", *asked)
    assert woolly("run", model, "two", *asked, stdin="one\n") == joined
    command = f"printf 'one\\n' | {sys.executable} -m woolly.cli run {model} two {' '.join(asked)}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, joined, "")


def test_nothing_is_read_from_closed_stdin(model):
    command = f"{sys.executable} -m woolly.cli run {model} two -n 2 --seed 1 <&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_prompt_by_option_and_by_file(model, tmp_path):
    (tmp_path / "text").write_text("one\n")
    asked = ("-n", "6", "--seed", "1")
    two = woolly("run", model, "two", *asked)
    assert woolly("run", model, "-p", "two", *asked) == two
    assert woolly("run", "-m", model, "--prompt", "two", *asked) == two
    assert woolly("run", model, "-f", tmp_path / "text", *asked) == woolly("run", model, "one", *asked)
    assert woolly("run", model, "-f", tmp_path / "text", "two", *asked) == woolly("run", model, "one\n\ntwo", *asked)
    assert woolly("run", model, "-f", "-", "two", *asked, stdin="one") == woolly("run", model, "one\n\ntwo", *asked)
    with pytest.raises(RequestError, match=r"--file: .*none cannot be read"):
        woolly("run", model, "-f", tmp_path / "none")


@pytest.mark.parametrize(
    ("word", "reported"),
    [
        ("smolm2", "no model named 'smolm2': did you mean smollm2"),
        ("smol2", "did you mean smollm2"),
        ("smollm2x", "did you mean smollm2"),
        ("mistrall", "no model named 'mistrall': did you mean mistral"),
        ("qwen-max", "no model named 'qwen-max': `woolly list` shows"),
        ("wool:latest", "no model named 'wool:latest': `woolly list` shows"),
        ("llama3.2:9b", "no model named 'llama3.2:9b': did you mean llama3.2:3b or llama3.2:1b"),
        (
            "org/repo-GGUF",
            "no file org/repo-GGUF, and hf:org/repo-GGUF is not downloaded yet; run `woolly pull hf:org",
        ),
        ("missing.gguf", "no file or model named 'missing.gguf'"),
        ("missing.bin", "no file or model named 'missing.bin'"),
        (
            "ggml-base.en.bin",
            "named 'ggml-base.en.bin': give the path of the file, or fetch it: `woolly pull whisper:base.en`",
        ),
        ("parakeet:tdt-1.1b", "parakeet has no 'tdt-1.1b' in the catalogue; it has tdt-0.6b-v3 (-p parakeet:"),
        ("ggml-my.bin", "or fetch it: `woolly pull hf:ggerganov/whisper.cpp/ggml-my.bin`"),
        ("./ggml-parakeet-tdt-0.6b-v3-q8_0.bin", "or fetch it: `woolly pull parakeet`"),
        ("ggml-parakeet-my.bin", "or fetch it: `woolly pull hf:ggml-org/parakeet-GGUF/ggml-parakeet-my.bin`"),
        ("models/llama", "no file or model named 'models/llama'; expected the path"),
        ("hf:org/repo", "hf:org/repo is not downloaded yet; run `woolly pull hf:org/repo`"),
        ("hf:org/repo/a b.gguf", "is not downloaded yet"),
    ],
)
def test_misspelled_model_is_not_a_prompt(word, reported, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WOOLLY_HOME", str(tmp_path))
    with pytest.raises(StoreError) as error:
        model_and_prompt([word], None, None)
    assert reported in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "word",
    [
        "Hello!",
        "hello",
        "Why is the sky blue?",
        "and/or what?",
        "2+2=",
        "smolm2 is?",
        "What is in a.bin",
        "/",
        "x" * 9000,
    ],
)
def test_prompt_is_not_a_model(word, stdin, tmp_path, monkeypatch):
    monkeypatch.setenv("WOOLLY_HOME", str(tmp_path))
    stdin(os.open(os.devnull, os.O_RDONLY))
    assert model_and_prompt([word], None, None) == (None, word)


def test_minus_p_makes_any_word_a_prompt(stdin):
    stdin(os.open(os.devnull, os.O_RDONLY))
    assert model_and_prompt([], None, "smolm2") == (None, "smolm2")


def test_error_names_the_file_and_not_its_folder():
    for said, shown in (
        ("images[1]: the image is empty", "b.png: the image is empty"),
        ("the audio up to audio[0] take 9 tokens", "the audio up to c.wav take 9 tokens"),
        ("images[7]: it is gone", "images[7]: it is gone"),
        ("images[0]: a.png is not an image", "a.png is not an image"),
        ("the prompt is empty", "the prompt is empty"),
    ):
        with pytest.raises(RequestError) as error, with_file_names(("x/a.png", "x/b.png"), ("/y/c.wav",)):
            raise RequestError(said, code="context_length", limit=3)
        assert (str(error.value), error.value.code, error.value.limit) == (shown, "context_length", 3)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["serve"], r"serve is a command: woolly serve \(-p serve makes it the prompt\)"),
        (["-m", "{model}", "list"], "list is a command: woolly list"),
        (["{model}", "list"], "list is a command: woolly list"),
        (["help"], "`woolly run --help` shows the options"),
    ],
)
def test_command_name_is_not_a_prompt(model, words, sentence):
    with pytest.raises(WoollyError, match=sentence):
        woolly("run", *(word.format(model=model) for word in words))


def test_command_name_may_be_a_prompt_by_option(model):
    assert woolly("run", model, "-p", "list", "-n", "2", "-t", "1")


@pytest.mark.parametrize("flag", ["-f", "--file", "--pdf", "--image"])
def test_pdf_file_is_read_as_pages(flag, tiny_model, tmp_path, monkeypatch):
    pytest.importorskip("pypdfium2")
    sent = []
    monkeypatch.setattr(LLM, "chat", lambda llm, messages, *_, **options: sent.append((messages, options)) or 1 / 0)
    (tmp_path / "a.pdf").write_bytes(write_pdf(["Wool"]))
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(ZeroDivisionError):
        woolly("run", tiny_model, "Sum up", flag, tmp_path / "a.pdf", "-f", tmp_path / "a.txt")
    ((messages, options),) = sent
    assert messages == [{"role": "user", "content": "text\n\nSum up"}]
    assert options["images"] == (str(tmp_path / "a.pdf"),)
