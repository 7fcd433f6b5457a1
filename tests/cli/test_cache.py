"""`woolly cache`: lists, checks, removes and pins pages on disk."""

import json

import pytest

from tests.cli.terminal import woolly
from woolly import RequestError
from woolly.cache.page_folder import stored_pages


@pytest.fixture
def pages(tmp_path, tiny_model, monkeypatch):
    """A folder with the pages of one pinned prompt."""
    monkeypatch.setenv("WOOLLY_HOME", str(tmp_path))
    (tmp_path / "prompt.txt").write_text("sheep " * 20)
    out = woolly("cache", "pin", tmp_path / "prompt.txt", "-m", tiny_model)
    assert "3 pages pinned" in out
    return tmp_path / "pages"


def test_pages_are_listed_checked_and_cleared(pages):
    (entry,) = json.loads(woolly("cache", "list", "--json"))["identities"]
    assert (entry["pages"], entry["pinned"]) == (3, 3)
    assert entry["identity"] in woolly("cache")
    assert "3 files of 3 intact" in woolly("cache", "verify")
    assert "0 files removed" in woolly("cache", "clear")
    victim = next(stored_pages(pages)).path
    victim.write_bytes(victim.read_bytes()[:-1])
    assert "truncated or damaged content; removed" in woolly("cache", "verify")
    assert json.loads(woolly("cache", "clear", "--pinned", "--json"))["removed"] == 2
    assert not list(stored_pages(pages))


def test_conversation_can_be_pinned(tmp_path, tiny_model, monkeypatch):
    monkeypatch.setenv("WOOLLY_HOME", str(tmp_path))
    (tmp_path / "chat.json").write_text(json.dumps([{"role": "user", "content": "sheep " * 20}]))
    assert "pinned" in woolly("cache", "pin", tmp_path / "chat.json", "-m", tiny_model)


def test_errors_say_what_would_be_right(tmp_path, tiny_model):
    for given, named in ((("burn",), "one of"), (("pin",), "prompt and a model"), (("list", "x"), "takes no file")):
        with pytest.raises(RequestError, match=named):
            woolly("cache", *given)
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(RequestError, match="not valid JSON"):
        woolly("cache", "pin", tmp_path / "bad.json", "-m", tiny_model, "--folder", tmp_path / "pages")
