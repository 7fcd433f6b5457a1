from pathlib import Path

import pytest

from woolly.errors import StoreError
from woolly.store import models_folder


@pytest.mark.parametrize(
    ("woolly_home", "xdg", "expected"),
    [
        ("/w", "/x", "/w/models"),
        (None, "/x", "/x/woolly/models"),
        ("", "/x", "/x/woolly/models"),
        (None, None, "/h/.cache/woolly/models"),
        (None, "", "/h/.cache/woolly/models"),
        (None, "relative", "/h/.cache/woolly/models"),
    ],
)
def test_folder_follows_woolly_home_then_xdg_then_home(monkeypatch, woolly_home, xdg, expected):
    monkeypatch.setenv("HOME", "/h")
    for variable, value in (("WOOLLY_HOME", woolly_home), ("XDG_CACHE_HOME", xdg)):
        if value is None:
            monkeypatch.delenv(variable, raising=False)
        else:
            monkeypatch.setenv(variable, value)
    assert models_folder() == Path(expected)


def test_relative_woolly_home_does_not_follow_the_working_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("WOOLLY_HOME", "here")
    monkeypatch.chdir(tmp_path)
    assert models_folder() == tmp_path / "here" / "models"


def test_missing_home_error_names_the_variable_to_set(monkeypatch):
    def nobody():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("WOOLLY_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nobody)
    with pytest.raises(StoreError, match="set WOOLLY_HOME"):
        models_folder()
