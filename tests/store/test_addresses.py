"""Pulling from an address."""

import hashlib

import pytest

from tests.store.hub import Hub
from woolly.errors import StoreError
from woolly.store import download, list_models, pull, remove_model, resolve

DATA = b"GGUF" + bytes(1_500_000)


@pytest.fixture
def site(tmp_path, monkeypatch):
    site = Hub()
    site.repos["some/where"] = {"own.gguf": DATA, "page.gguf": b"<html>", "page.html": b"<html>"}
    monkeypatch.setenv("WOOLLY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(download, "_PAUSE", 0.01)
    yield site
    site.close()


def test_a_file_comes_once_and_is_known_by_its_name_and_address(site, tmp_path):
    url = f"{site.url}/cdn/some/where/own.gguf"
    site.cuts = 1
    path = pull(url)
    assert path == tmp_path / "home" / "models" / "own.gguf"
    assert path.read_bytes() == DATA
    n = len(site.log)
    assert pull(url) == resolve(url) == resolve("own.gguf") == resolve("own") == path
    assert len(site.log) == n
    assert [model.name for model in list_models()] == ["own.gguf"]
    assert remove_model("own").path == path
    with pytest.raises(StoreError, match="is not here yet: run `woolly pull http"):
        resolve(url)


def test_a_checksum_is_held(site, tmp_path):
    url, right = f"{site.url}/cdn/some/where/own.gguf", hashlib.sha256(DATA).hexdigest()
    with pytest.raises(StoreError, match="not the expected 0000"):
        pull(url, sha256="0" * 64)
    assert not (tmp_path / "home" / "models" / "own.gguf").exists()
    pull(url, sha256=right.upper())
    with pytest.raises(StoreError, match="is there already with another checksum"):
        pull(url, sha256="0" * 64)
    with pytest.raises(StoreError, match="64 hexadecimal digits"):
        pull(url, sha256="abc")


def test_what_is_no_model_is_not_kept(site, tmp_path):
    with pytest.raises(StoreError, match="was removed, for it is no GGUF file"):
        pull(f"{site.url}/cdn/some/where/page.gguf")
    with pytest.raises(StoreError, match="names no GGUF file"):
        pull(f"{site.url}/cdn/some/where/page.html")
    with pytest.raises(StoreError, match=r"there is no http.*\(404"):
        pull(f"{site.url}/nothing.gguf")
    assert all(path.suffix == ".lock" for path in (tmp_path / "home" / "models").iterdir())


def test_a_path_is_used_in_place(site, tmp_path):
    own = tmp_path / "mine.gguf"
    own.write_bytes(DATA)
    assert pull(str(own)) == own
    with pytest.raises(StoreError, match="is a file of yours"):
        remove_model(str(own))
    assert own.exists()


def test_a_server_that_is_not_there_is_one_sentence(site):
    with pytest.raises(StoreError, match=r"could not fetch .* from 127\.0\.0\.1:9 \(Connection refused\): check"):
        pull("http://127.0.0.1:9/own.gguf")
