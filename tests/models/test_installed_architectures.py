"""An installed package adds an architecture with an entry point."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from tests.cases.fake_distribution import install
from tests.cases.tiny import TINY, write_tiny
from tests.models.test_registry import RECIPE
from woolly import LLM
from woolly.errors import ModelError
from woolly.gguf import open_gguf
from woolly.models import architectures, registry, trace

NAME = "woolly-test-architecture"


@pytest.fixture(autouse=True)
def forget():
    registry._installed.cache_clear()
    yield
    registry._installed.cache_clear()
    sys.modules.pop("installed_model", None)
    for key in [key for key in registry._KNOWN if key[0] == NAME]:
        del registry._KNOWN[key]


def tiny(folder, name=NAME):
    return write_tiny(replace(TINY["qwen3"], architecture=name), folder / f"{name}.gguf")


def test_architecture_of_an_installed_package_runs(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, "woolly.models", f"{NAME} = installed_model", "installed_model", RECIPE)
    assert NAME in architectures()
    found = []
    for name in (NAME, "qwen3"):
        with LLM(tiny(tmp_path, name), backend="reference") as llm:
            found.append(llm.logits([1, 5, 9]))
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import woolly_missing", "cannot be imported: No module named 'woolly_missing'"),
        ("x = 1", "must name a module with read and build"),
    ],
)
def test_wrong_package_is_reported(tmp_path, monkeypatch, source, reason):
    install(tmp_path, monkeypatch, "woolly.models", f"{NAME} = installed_model", "installed_model", source)
    with open_gguf(tiny(tmp_path)) as file, pytest.raises(ModelError, match=reason):
        trace(file)
