"""Fixtures of split models."""

import pytest

from tests.cases.tiny import write_tiny
from tests.runtime.split.machine import Machine
from woolly.gguf import open_gguf


@pytest.fixture
def machine(tmp_path, monkeypatch):
    files = []

    def get(tiny):
        files.append(open_gguf(write_tiny(tiny, tmp_path / f"{len(files)}.gguf")))
        return Machine(files[-1], monkeypatch)

    yield get
    for file in files:
        file.close()
