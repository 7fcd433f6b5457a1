"""Ids equal those of the reference on every vocabulary of the folder that WOOLLY_TEST_VOCABS names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from woolly.text import Tokenizer

SEPARATOR = "\n__ggml_vocab_test__\n"

_folder = os.environ.get("WOOLLY_TEST_VOCABS", "")
FILES = sorted(path for path in Path(_folder).glob("*.gguf") if Path(f"{path}.out").exists()) if _folder else []


def test_the_folder_of_vocabularies_is_there():
    if FILES:
        return
    reason = f"WOOLLY_TEST_VOCABS is {_folder!r}: it must name a folder of *.gguf with *.gguf.inp and *.gguf.out"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem.removeprefix("ggml-vocab-"))
def test_ids_equal_the_reference(path):
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
