"""Mistakes of users, and the sentences that answer them. `python -m tests.cases.mistakes` prints all for a reader.

Each sentence says what is wrong and what to do. A mistake is a line of the command line, a call of the library, or a
request to a server. MODEL is a tiny model, and DIR a folder with the broken files of `write_files`.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import woolly.errors
from woolly import LLM, SamplingParams

COMMANDS = (
    # Typos
    "serv",
    "rnu hello",
    "run MODEL hi --temprature 0.5",
    "run MODEL hi --max-new-tokens 5",
    "run smolm2 hi",
    "run qwne3:4b hi",
    "pull smolm2",
    "pull qwen3:17b",
    "chat lama3.2",
    "serve --prot 8080",
    "list --catalog-all",
    "show MODEL --tensor",
    "bench MODEL -o tabel",
    "run MODEL hi --kv-type q8",
    "run MODEL hi --device gpu0",
    "run MODEL hi --backend opencl",
    "quantize MODEL DIR/out.gguf Q4_KM",
    "eval MODEL questions.jsonl --tasks mmlu",
    # Missing or superfluous words
    "run",
    "run MODEL tell me a joke",
    "rm",
    "show",
    "quantize MODEL",
    "convert",
    "embed MODEL",
    "rerank MODEL",
    "list MODEL extra",
    "launch",
    # Wrong values
    "run MODEL hi -n 0",
    "run MODEL hi -n many",
    "run MODEL hi --temp hot",
    "run MODEL hi --top-p 1.5",
    "run MODEL hi -c 0",
    "run MODEL hi -c 1e6",
    "run MODEL hi -t 0",
    "run MODEL hi --seed abc",
    "run MODEL hi --weight-memory lots",
    "run MODEL hi --samplers top_k;tpo_p",
    "run MODEL hi --mirostat 3",
    "run MODEL hi -m MODEL -m DIR/other.gguf",
    "serve -m MODEL --port 99999",
    "serve -m MODEL --port http",
    "serve -m MODEL --parallel 0",
    "serve -m MODEL --max-body 1XB",
    "serve -m MODEL --keys-file DIR/none.toml",
    "serve -m MODEL --config DIR/broken.toml",
    "serve -m MODEL --ssl-cert-file DIR/none.pem",
    "serve -m MODEL --api-key",
    "keys add anna --keys-file DIR/broken.toml",
    "keys add --keys-file DIR/k.toml an/na",
    "bench MODEL -p x",
    "quantize MODEL DIR/out.gguf --size 90",
    # Wrong and broken files
    "run DIR/none.gguf hi",
    "run DIR hi",
    "run DIR/empty.gguf hi",
    "run DIR/page.gguf hi",
    "run DIR/cut.gguf hi",
    "run DIR/header.gguf hi",
    "show DIR/cut.gguf",
    "run DIR/weights.safetensors hi",
    "convert DIR/none DIR/out.gguf",
    "convert DIR DIR/out.gguf",
    "run MODEL -f DIR/none.txt",
    "run MODEL -f DIR/latin.txt",
    "run MODEL hi --image DIR/page.gguf",
    "run MODEL hi --image DIR/none.png",
    "run MODEL hi --audio DIR/none.wav",
    "run MODEL hi --json-schema DIR/broken.json",
    "run MODEL hi --json-schema {",
    "run MODEL hi --grammar DIR/none.gbnf",
    "run MODEL hi --grammar root::=no",
    "run MODEL hi --lora MODEL",
    "run MODEL hi --lora DIR/none.gguf",
    "run MODEL hi --mmproj MODEL",
    "run MODEL hi -md DIR/none.gguf",
    "perplexity MODEL DIR/none.txt",
    "batch DIR/none.jsonl DIR/out.jsonl -m MODEL",
    "embed MODEL -f DIR/none.txt",
    "quantize DIR/cut.gguf DIR/out.gguf Q8_0",
    "quantize MODEL MODEL Q8_0",
    # The wrong model
    "embed MODEL hi",
    "rerank MODEL hi -d a",
    "transcribe MODEL DIR/none.wav",
    "run nomic-embed hi --image DIR/none.png",
    # Servers that are not there, and full disks
    "ps --url http://127.0.0.1:1",
    "stop --url http://127.0.0.1:1",
    "ps --url nowhere",
    "quantize MODEL /dev/full/out.gguf Q8_0",
    "run MODEL hi --device cuda",
)

CALLS: dict[str, Callable[[LLM], Any]] = {
    "llm.generate('hi', max_new_tokens=5)": lambda llm: llm.generate("hi", max_new_tokens=5),
    "llm.generate(5)": lambda llm: llm.generate(5),
    "llm.generate(b'hi')": lambda llm: llm.generate(b"hi"),
    "llm.generate([1, 2, 10**9])": lambda llm: llm.generate([1, 2, 10**9]),
    "llm.generate([None])": lambda llm: llm.generate([None]),
    "llm.generate('hi' * 9000)": lambda llm: llm.generate("hi" * 9000),
    "llm.generate('hi', stop=5)": lambda llm: llm.generate("hi", stop=5),
    "llm.generate('hi', temperature='hot')": lambda llm: llm.generate("hi", temperature="hot"),
    "llm.generate('hi', logit_bias={'': 1})": lambda llm: llm.generate("hi", logit_bias={"": 1}),
    "llm.generate(['a', 'b'], [SamplingParams()])": lambda llm: llm.generate(["a", "b"], [SamplingParams()]),
    "llm.generate('hi', {'temperature': 0})": lambda llm: llm.generate("hi", {"temperature": 0}),
    "llm.chat([{'role': 'alien', 'content': 'hi'}])": lambda llm: llm.chat([{"role": "alien", "content": "hi"}]),
    "llm.chat([{'content': 'hi'}])": lambda llm: llm.chat([{"content": "hi"}]),
    "llm.chat([])": lambda llm: llm.chat([]),
    "llm.chat('hi', tools=[{}])": lambda llm: llm.chat("hi", tools=[{}]),
    "llm.chat('hi', tools=[lambda x: x])": lambda llm: llm.chat("hi", tools=[lambda x: x]),
    "llm.chat('hi', tool_choice='weather')": lambda llm: llm.chat("hi", tool_choice="weather"),
    "llm.chat('hi', schema=5)": lambda llm: llm.chat("hi", schema=5),
    "llm.chat('hi', images=['cat.png'])": lambda llm: llm.chat("hi", images=["cat.png"]),
    "llm.chat('hi', images='cat.png')": lambda llm: llm.chat("hi", images="cat.png"),
    "llm.embed('hi')": lambda llm: llm.embed("hi"),
    "llm.rerank('hi', ['a'])": lambda llm: llm.rerank("hi", ["a"]),
    "llm.transcribe('talk.wav')": lambda llm: llm.transcribe("talk.wav"),
    "llm.hidden([1], 'blk.99')": lambda llm: llm.hidden([1], "blk.99"),
    "llm.create_completion('hi')": lambda llm: llm.create_completion("hi"),  # type: ignore[attr-defined]
    "llm('hi')": lambda llm: llm("hi"),  # type: ignore[operator]
    "pickle.dumps(llm)": lambda llm: __import__("pickle").dumps(llm),
    "LLM('none.gguf')": lambda llm: LLM("none.gguf"),
    "LLM(MODEL, n_ctx=5)": lambda llm: LLM(llm.path, n_ctx=5),  # type: ignore[call-arg]
    "LLM(MODEL, ctx=-1)": lambda llm: LLM(llm.path, ctx=-1),
    "LLM(MODEL, kv_type='int8')": lambda llm: LLM(llm.path, kv_type="int8"),
    "LLM(MODEL, adapters=['none.gguf'])": lambda llm: LLM(llm.path, adapters=["none.gguf"]),
    "LLM(MODEL, speculation='none.gguf')": lambda llm: LLM(llm.path, speculation="none.gguf"),
    "LLM(MODEL, chat_template='{{')": lambda llm: LLM(llm.path, chat_template="{{"),
}

_HI = [{"role": "user", "content": "hi"}]
_CHAT, _COMPLETE = "/v1/chat/completions", "/v1/completions"

# Method, path, and body: JSON, or the bytes themselves.
REQUESTS: tuple[tuple[str, str, Any], ...] = (
    ("POST", _CHAT, {"messages": _HI, "seed": "x"}),
    ("POST", _CHAT, {"messages": []}),
    ("POST", _CHAT, {}),
    ("POST", _CHAT, b"{"),
    ("POST", _CHAT, b"\xff"),
    ("POST", _CHAT, {"messages": "hi"}),
    ("POST", _CHAT, {"messages": _HI, "temperature": "hot"}),
    ("POST", _CHAT, {"messages": _HI, "top_p": -1}),
    ("POST", _CHAT, {"messages": _HI, "max_tokens": 0}),
    ("POST", _CHAT, {"messages": _HI, "n": 1000}),
    ("POST", _CHAT, {"messages": _HI, "tools": [{"type": "function"}]}),
    ("POST", _CHAT, {"messages": _HI, "tool_choice": "weather"}),
    ("POST", _CHAT, {"messages": _HI, "response_format": {"type": "xml"}}),
    ("POST", _CHAT, {"messages": _HI, "response_format": {"type": "json_schema"}}),
    ("POST", _CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
    ("POST", _CHAT, {"messages": [{"role": "user", "content": "hi" * 9000}]}),
    ("POST", _COMPLETE, {"prompt": 5}),
    ("POST", _COMPLETE, {"prompt": "a", "stop": [1]}),
    ("POST", _COMPLETE, {"prompt": "a", "logit_bias": {"x": "y"}}),
    ("POST", _COMPLETE, {"prompt": "a", "grammar": "root ::= no"}),
    ("POST", "/completion", {"prompt": "a", "lora": [{"id": 7, "scale": 1}]}),
    ("POST", "/v1/embeddings", {"input": "hi"}),
    ("POST", "/v1/rerank", {"query": "hi", "documents": ["a"]}),
    ("POST", "/v1/messages", {"messages": _HI}),
    ("POST", "/api/chat", {"messages": _HI, "options": {"num_predict": "x"}}),
    ("POST", "/api/pull", {"model": "qwen3:4b"}),
    ("POST", "/v1/responses", {"input": 5}),
    ("GET", "/v1/responses/none", None),
    ("POST", "/v1beta/models/none:generateContent", {"contents": []}),
    ("GET", _CHAT, None),
    ("POST", "/v1/chat/completion", {"messages": _HI}),
    ("POST", "/v1/images/generations", {"prompt": "a cat"}),
    ("POST", "/slots/9?action=save", {"filename": "x"}),
    ("POST", "/detokenize", {"tokens": ["a"]}),
    ("POST", "/api/v1/models/none/load", {}),
)


def write_files(folder: Path, model: Path) -> None:
    """Write the broken files that the mistakes name."""
    data = model.read_bytes()
    (folder / "empty.gguf").write_bytes(b"")
    (folder / "page.gguf").write_text("<!DOCTYPE html><html>Not found</html>\n")
    (folder / "cut.gguf").write_bytes(data[: len(data) // 2])
    (folder / "header.gguf").write_bytes(data[:100])
    (folder / "other.gguf").write_bytes(data)
    (folder / "weights.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    (folder / "latin.txt").write_bytes("Käse".encode("latin-1"))
    (folder / "broken.json").write_text('{"type": "object",\n')
    (folder / "broken.jsonl").write_text('{"custom_id": "a"\n')
    (folder / "broken.toml").write_text("port = = 1\n")


def command_sentences(
    model: Path, folder: Path, run: Callable[[list[str]], tuple[int, str]]
) -> Iterator[tuple[str, str]]:
    """Yield each line and its error. `run` returns the exit code and standard error of a line."""
    for line in COMMANDS:
        words = [word.replace("MODEL", str(model)).replace("DIR", str(folder)) for word in line.split()]
        code, said = run(words)
        assert code in (1, 2), f"woolly {line} ended with {code}: {said}"
        errors = [one for one in said.splitlines() if one.startswith("woolly: error: ")]
        assert len(errors) == 1 and "Traceback" not in said, f"woolly {line} printed {said!r}"
        yield f"woolly {line}", _without(errors[0].removeprefix("woolly: error: "), model, folder)


def call_sentences(llm: LLM, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield each call of the library and its error."""
    for name, call in CALLS.items():
        try:
            call(llm)
        except (woolly.errors.WoollyError, AttributeError, TypeError) as error:
            yield name, _without(str(error), llm.path, folder)
        else:
            raise AssertionError(f"{name} is accepted")


def request_sentences(client: Any) -> Iterator[tuple[str, str]]:
    """Yield each request and the message of its reply."""
    for method, path, body in REQUESTS:
        raw = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        reply = client.request(method, path, content=raw, headers={"Content-Type": "application/json"})
        assert 400 <= reply.status_code <= 501, f"{method} {path} {body!r}: {reply.status_code} {reply.text[:200]}"
        error = reply.json()["error"]
        yield f"{method} {path} {str(body)[:80]}", error if isinstance(error, str) else error["message"]


def _without(text: str, model: Path, folder: Path) -> str:
    return text.replace(str(model), "MODEL").replace(str(folder), "DIR")


# Words that tell the reader what to do, or what is accepted.
_ADVICE = re.compile(
    r"(?i)did you mean|expect|use |choose|pass |add |omit|remove|lower|raise|shorten|send|download|woolly \w+|install"
    r"|known|input should be|field required|the roles are|is not defined|not images"
    r"|check |at (least|most)|try |such as|for instance|one of|see |needs |without|leave|save|give|open|start"
    r"|rename|must|it has |may (?!be)|run |fetch|correct|`|instead|does not exist|--\w+",
)


def has_advice(sentence: str) -> bool:
    """Return True if a sentence has a word that tells what to do."""
    return _ADVICE.search(sentence) is not None


def run_line(words: list[str]) -> tuple[int, str]:
    """Run a line of the command line in this process. Return the exit code and standard error."""
    import contextlib
    import io

    from woolly.cli.app import main

    said, told = io.StringIO(), io.StringIO()
    argv, stdin = sys.argv, sys.stdin
    sys.argv, sys.stdin = ["woolly", *words], io.TextIOWrapper(io.BytesIO())
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(told):
            main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1 if ended.code else 0
    finally:
        sys.argv, sys.stdin = argv, stdin
    return code, said.getvalue()


def _print_all() -> None:
    from fastapi.testclient import TestClient

    from tests.cases.tiny import TINY, write_tiny
    from woolly.serving import Settings, create_app

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / "tiny.gguf"
        write_tiny(TINY["llama"], model)
        write_files(folder, model)
        found = list(command_sentences(model, folder, run_line))
        with LLM(model, threads=1, ctx=256) as llm:
            found += call_sentences(llm, folder)
        with TestClient(create_app(Settings(model=model, threads=1, sessions_file=folder / "s.db"))) as client:
            found += request_sentences(client)
    for number, (what, sentence) in enumerate(found, 1):
        mark = " " if has_advice(sentence) else "?"
        print(f"{number:3}{mark} {what}\n     {sentence}")


if __name__ == "__main__":
    _print_all()
