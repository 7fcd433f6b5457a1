"""Pulling from an address."""

import hashlib
import json

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


def test_file_is_downloaded_once_and_found_by_name_and_url(site, tmp_path):
    url = f"{site.url}/cdn/some/where/own.gguf"
    site.cuts = 1
    path = pull(url)
    assert path == tmp_path / "home" / "models" / "own.gguf"
    assert path.read_bytes() == DATA
    n = len(site.log)
    assert pull(url) == resolve(url) == resolve("own.gguf") == resolve("own") == path
    assert len(site.log) == n
    assert [model.name for model in list_models()] == ["own"]
    assert remove_model("own").path == path
    with pytest.raises(StoreError, match="is not downloaded yet; run `woolly pull http"):
        resolve(url)


def test_checksum_is_verified(site, tmp_path):
    url, right = f"{site.url}/cdn/some/where/own.gguf", hashlib.sha256(DATA).hexdigest()
    with pytest.raises(StoreError, match="not the expected 0000"):
        pull(url, sha256="0" * 64)
    assert not (tmp_path / "home" / "models" / "own.gguf").exists()
    pull(url, sha256=right.upper())
    with pytest.raises(StoreError, match="already exists with another checksum"):
        pull(url, sha256="0" * 64)
    with pytest.raises(StoreError, match="64 hexadecimal digits"):
        pull(url, sha256="abc")


def test_non_model_is_not_kept(site, tmp_path):
    with pytest.raises(StoreError, match="was removed because it is not a GGUF file"):
        pull(f"{site.url}/cdn/some/where/page.gguf")
    with pytest.raises(StoreError, match="is not the address of a GGUF file"):
        pull(f"{site.url}/cdn/some/where/page.html")
    with pytest.raises(StoreError, match=r"there is no http.*\(404"):
        pull(f"{site.url}/nothing.gguf")
    assert all(path.suffix == ".lock" for path in (tmp_path / "home" / "models").iterdir())


def test_path_is_used_in_place(site, tmp_path):
    own = tmp_path / "mine.gguf"
    own.write_bytes(DATA)
    assert pull(str(own)) == own
    with pytest.raises(StoreError, match="is your own file"):
        remove_model(str(own))
    assert own.exists()


def test_unreachable_server_gives_a_one_line_error(site):
    with pytest.raises(
        StoreError,
        match=r"cannot reach 127\.0\.0\.1:9 for .* \(Connection refused\): check the network; models here: none",
    ):
        pull("http://127.0.0.1:9/own.gguf")


def test_same_file_name_from_another_url_is_another_model(site, tmp_path):
    site.repos["other/where"] = {"own.gguf": DATA + b"other"}
    first, second = (f"{site.url}/cdn/{owner}/where/own.gguf" for owner in ("some", "other"))
    path = pull(first)
    for ask in (pull, resolve):
        with pytest.raises(StoreError, match=rf"already exists, from {first}; run `woolly rm own.gguf` before"):
            ask(second)
    with pytest.raises(StoreError, match="already exists, from"):
        download.download(download.Remote(second, second), path, keep_source=True)  # as one that waited for the lock
    assert pull(second, sha256=hashlib.sha256(DATA).hexdigest()) == path  # the bytes that were asked for
    remove_model("own.gguf")
    assert pull(second).read_bytes() == DATA + b"other"
    assert resolve(second) == path


def test_names_that_differ_only_in_case_are_distinguished(tmp_path, site):
    folder = tmp_path / "home" / "models"
    folder.mkdir(parents=True)
    for name in ("Own.gguf", "own.gguf"):
        (folder / name).write_bytes(DATA)
    if len(list(folder.iterdir())) < 2:
        pytest.skip("this disk does not tell them apart")
    with pytest.raises(StoreError, match=r"OWN may mean Own or own; choose the one"):
        remove_model("OWN")
    assert remove_model("Own.gguf").path == folder / "Own.gguf"
    assert remove_model("OWN").path == folder / "own.gguf"


def left_over(site, tmp_path, data):
    """Leave the partial download of a killed process."""
    url, folder = f"{site.url}/cdn/some/where/own.gguf", tmp_path / "home" / "models"
    folder.mkdir(parents=True)
    (folder / "own.gguf.partial").write_bytes(data)
    tag = f'"{hashlib.md5(DATA).hexdigest()}False"'
    (folder / "own.gguf.partial.json").write_text(json.dumps({"url": url, "etag": tag}))
    return url


def test_unverified_download_is_verified_and_used(site, tmp_path):
    url = left_over(site, tmp_path, DATA)
    assert pull(url).read_bytes() == DATA
    assert [wanted for _, wanted, _ in site.log] == [f"bytes={len(DATA)}-"]
    assert not list((tmp_path / "home" / "models").glob("*.partial*"))


def test_partial_file_longer_than_the_file_is_downloaded_again(site, tmp_path):
    url = left_over(site, tmp_path, DATA + b"more")
    assert pull(url).read_bytes() == DATA
    assert [wanted for _, wanted, _ in site.log] == [f"bytes={len(DATA) + 4}-", None]


def test_wrong_byte_range_is_not_written(site, tmp_path):
    url = left_over(site, tmp_path, DATA[:1000])
    site.shift = 4
    assert pull(url).read_bytes() == DATA
    assert [wanted for _, wanted, _ in site.log] == ["bytes=1000-", None]


def test_server_that_sends_too_much_is_stopped(site, tmp_path):
    url = f"{site.url}/cdn/some/where/own.gguf"
    with pytest.raises(StoreError, match="sent more than the expected 1000 bytes"):
        download.download(download.Remote(url, url, n_bytes=1000), tmp_path / "own.gguf")
    assert [path.name for path in tmp_path.glob("*own.gguf*")] == [".own.gguf.lock"]


def test_companion_files_are_removed_with_the_model_except_the_lock(site, tmp_path):
    path = pull(f"{site.url}/cdn/some/where/own.gguf")
    partial = path.with_name("own.gguf.partial")
    partial.mkdir()
    (partial / "pip.log").touch()
    remove_model("own.gguf")
    assert [left.name for left in path.parent.iterdir()] == [".own.gguf.lock"]
