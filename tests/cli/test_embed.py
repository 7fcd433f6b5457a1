"""woolly embed and woolly rerank: texts from everywhere, vectors to every format, and work that is resumed."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from tests.cases.texts import write_readers
from tests.cli.terminal import woolly
from woolly import LLM, RequestError
from woolly.cli.app import app
from woolly.cli.commands import embed as command
from woolly.cli.parse.usage_errors import UsageError

TEXTS = ["sheep", "a goat", "sheep", "hay and grass", "wool"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_readers(tmp_path_factory.mktemp("readers"), "embedder", "ranker")


@pytest.fixture(scope="module")
def wanted(folder):
    with LLM(folder / "embedder.gguf") as llm:
        return llm.embed(TEXTS)


def rows(text):
    return np.array([json.loads(line)["embedding"] for line in text.splitlines()], np.float32)


def test_texts_come_from_arguments_stdin_and_files(folder, wanted, tmp_path):
    model = folder / "embedder.gguf"
    np.testing.assert_array_equal(rows(woolly("embed", model, "sheep")), wanted[:1])
    np.testing.assert_array_equal(rows(woolly("embed", model, stdin="\n".join(TEXTS))), wanted)
    lines, objects = tmp_path / "texts.txt", tmp_path / "texts.jsonl"
    lines.write_text("\r\n".join(TEXTS) + "\n")
    objects.write_text("".join(json.dumps({"id": i, "body": text}) + "\n" for i, text in enumerate(TEXTS)))
    np.testing.assert_array_equal(rows(woolly("embed", model, "-f", lines)), wanted)
    np.testing.assert_array_equal(rows(woolly("embed", "-m", model, "-f", objects, "--key", "body")), wanted)
    with pytest.raises(UsageError, match=r"line 1 has no text under 'text' \(it has id, body\).*--key"):
        woolly("embed", model, "-f", objects)


def test_metadata_of_the_model_can_be_changed(folder, wanted):
    model = folder / "embedder.gguf"
    changed = rows(woolly("embed", model, TEXTS[3], "--rope-freq-base", "3"))
    assert changed.shape == wanted[3:4].shape and not np.allclose(changed, wanted[3:4], atol=1e-4)
    with pytest.raises(UsageError, match=r"'a\.b', which this model does not use"):
        woolly("embed", model, "sheep", "--override-kv", "a.b=int:1")


@pytest.mark.parametrize("kind", ["npy", "jsonl", "parquet"])
def test_embeddings_are_written_in_every_format(folder, wanted, tmp_path, kind):
    texts, out = tmp_path / "texts.txt", tmp_path / f"vectors.{kind}"
    texts.write_text("\n".join(TEXTS))
    woolly("embed", folder / "embedder.gguf", "-f", texts, "-o", out)
    if kind == "npy":
        found = np.load(out)
    elif kind == "jsonl":
        found = rows(out.read_text())
    else:
        table = pytest.importorskip("pyarrow.parquet").read_table(out)
        assert table.column("text").to_pylist() == TEXTS
        found = np.array(table.column("embedding").to_pylist(), np.float32)
    np.testing.assert_array_equal(found, wanted)
    assert list(tmp_path.glob("*.part")) == []


def test_interrupted_command_is_resumed_by_the_same_command(folder, wanted, tmp_path, monkeypatch, capsys):
    texts, out = tmp_path / "texts.txt", tmp_path / "vectors.npy"
    texts.write_text("\n".join(TEXTS))
    monkeypatch.setattr(command, "_BLOCK", 2)
    embed, asked = LLM.embed, []

    def ended(self, given, **options):
        if len(asked) == 3:
            raise KeyboardInterrupt
        asked.append(list(given))
        return embed(self, given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(LLM, "embed", ended)
        with pytest.raises(AssertionError):
            woolly("embed", folder / "embedder.gguf", "-f", texts, "-o", out)
    assert not out.exists() and (tmp_path / "vectors.npy.part").exists()
    with (tmp_path / "vectors.npy.part").open("ab") as part:
        part.write(b"torn")  # half a row
    with pytest.raises(RequestError, match="belongs to other texts, another model or other options"):
        woolly("embed", folder / "embedder.gguf", "-f", texts, "-o", out, "--no-normalize")
    asked.clear()
    monkeypatch.setattr(
        LLM, "embed", lambda self, given, **options: asked.append(list(given)) or embed(self, given, **options)
    )
    woolly("embed", folder / "embedder.gguf", "-f", texts, "-o", out)
    assert asked[1:] == [TEXTS[4:]], "texts that were done were computed again"
    np.testing.assert_array_equal(np.load(out), wanted)


def test_unembeddable_input_is_rejected_before_any_work(folder, tmp_path):
    model = folder / "embedder.gguf"
    with pytest.raises(RequestError, match="text 1 has 600 tokens, but this model takes at most 512"):
        woolly("embed", model, stdin="a\n" + "b" * 600)
    assert len(rows(woolly("embed", model, "--truncate", stdin="a\n" + "b" * 600))) == 2
    with pytest.raises(RequestError, match=r"a name that ends in .npy, .jsonl, .parquet"):
        woolly("embed", model, "a", "-o", tmp_path / "vectors.csv")
    with pytest.raises(UsageError, match="no texts"):
        woolly("embed", model, "-f", "/dev/null")


def test_documents_are_printed_best_first(folder):
    model = folder / "ranker.gguf"
    with LLM(model) as llm:
        scores = llm.rerank("food", TEXTS[1:])
    printed = woolly("rerank", model, "food", stdin="\n".join(TEXTS[1:])).splitlines()
    order = sorted(range(4), key=lambda i: -scores[i])
    assert [line.strip().split("  ", 1)[1] for line in printed] == [TEXTS[1:][i] for i in order]
    assert woolly("rerank", model, "food", *TEXTS[1:]).splitlines() == printed
    assert woolly("rerank", "-m", model, "food", *TEXTS[1:3], "-d", TEXTS[3], "-d", TEXTS[4]).splitlines() == printed
    best = json.loads(woolly("rerank", "-m", model, "food", "-d", "a", "-d", "b", "--top", "1", "--json"))
    assert len(best) == 1 and set(best[0]) == {"index", "score", "text"}
    with pytest.raises(UsageError, match="missing query"):
        woolly("rerank", model)


def test_empty_lines_are_skipped_and_counted(folder, tmp_path):
    model, lines, objects = folder / "embedder.gguf", tmp_path / "texts.txt", tmp_path / "texts.jsonl"
    lines.write_text("sheep\n\x0cgoat\u2028kid\n")  # only a newline ends a line
    found = [json.loads(line) for line in woolly("embed", model, "-f", lines).split("\n")[:-1]]
    assert [(one["index"], one["text"]) for one in found] == [(0, "sheep"), (1, "\x0cgoat\u2028kid")]
    lines.write_text("\nsheep\n \ngoat\n")
    objects.write_text('{"text": "sheep"}\n\n\n{"text": "goat"}\n')
    for file in (lines, objects):
        result = CliRunner().invoke(app, ["embed", str(model), "-f", str(file)])
        assert [json.loads(line)["text"] for line in result.stdout.splitlines()] == ["sheep", "goat"]
        assert "2 lines without a text" in result.stderr


def test_hints_use_command_line_names(folder, tiny_model):
    with pytest.raises(UsageError, match="woolly embed qwen3-embedding"):
        woolly("embed")
    with pytest.raises(RequestError, match="or set --pooling to mean or last"):
        woolly("embed", tiny_model, "sheep")
