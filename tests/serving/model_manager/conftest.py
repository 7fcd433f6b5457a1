"""A folder of two tiny models, with a third one outside."""

import pytest

from tests.cases.tiny import TINY, write_tiny


@pytest.fixture
def folder(tmp_path):
    models = tmp_path / "models"
    models.mkdir()
    write_tiny(TINY["llama"], models / "one.gguf")
    write_tiny(TINY["qwen2"], models / "two.gguf")
    write_tiny(TINY["qwen3"], tmp_path / "outside.gguf")
    return models
