"""Ids equal those of the reference on every vocabulary of the folder that WOOLLY_TEST_VOCABS names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases.vocabularies import find_vocabularies, need_vocabularies
from woolly.tokens import Tokenizer

SEPARATOR = "\n__ggml_vocab_test__\n"


def test_vocabulary_folder_exists():
    assert need_vocabularies(".out")


@pytest.mark.parametrize("folder", [None, ""])
def test_without_a_folder_a_test_is_skipped_with_the_reason(monkeypatch, folder):
    monkeypatch.delenv("WOOLLY_TEST_VOCABS", raising=False)
    if folder is not None:
        monkeypatch.setenv("WOOLLY_TEST_VOCABS", folder)
    with pytest.raises(pytest.skip.Exception, match="WOOLLY_TEST_VOCABS is not set"):
        need_vocabularies()


@pytest.mark.parametrize("folder", ["/nonexistent", "empty"])
def test_folder_without_vocabularies_fails_a_test(monkeypatch, tmp_path, folder):
    monkeypatch.setenv("WOOLLY_TEST_VOCABS", str(tmp_path) if folder == "empty" else folder)
    with pytest.raises(pytest.fail.Exception, match="which is not a folder of"):
        need_vocabularies()


@pytest.mark.parametrize("path", find_vocabularies(".out"), ids=lambda path: path.stem.removeprefix("ggml-vocab-"))
def test_ids_match_the_reference(path):
    tokenizer = Tokenizer.from_gguf(path)
    texts = Path(f"{path}.inp").read_bytes().decode().split(SEPARATOR)
    texts = texts[:-1] if texts[-1] == "" else texts
    lines = Path(f"{path}.out").read_text().splitlines()
    assert len(texts) == len(lines) > 0
    for text, line in zip(texts, lines, strict=True):
        expected = [int(number) for number in line.split()]
        ids = tokenizer.encode(text, add_special=False, parse_special=False)
        assert ids == expected, text
        if tokenizer.model != "bert":  # BERT does not keep case and spaces
            assert tokenizer.decode(ids) == text
