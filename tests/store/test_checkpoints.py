"""Checkpoints from the hub, over real HTTP against a stand-in for it."""

import pytest

from tests.store.hub import Hub
from woolly.errors import StoreError
from woolly.store import download, resolve
from woolly.store.hub_download import pull_checkpoint

REPO = "sheep/wool"
FILES = {
    "config.json": b"{}",
    "model-00001-of-00002.safetensors": b"1" * 5000,
    "model-00002-of-00002.safetensors": b"2" * 7000,
    "tokenizer.json": b"{}",
    "tokenizer.model": b"pieces",
}
OTHERS = {"README.md": b"hello", "pytorch_model.bin": b"pickle", "onnx/model.safetensors": b"3", ".hidden.json": b"{}"}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    hub = Hub()
    hub.repos[REPO] = FILES | OTHERS
    hub.repos["sheep/pickled"] = {"config.json": b"{}", "pytorch_model.bin": b"pickle"}
    for name in ("HF_TOKEN", "HF_HOME", "HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WOOLLY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setattr(download, "_PAUSE", 0.01)
    yield hub
    hub.close()


def test_checkpoint_files_are_fetched_once_and_no_others(hub):
    calls = []
    folder = pull_checkpoint(REPO, lambda *call: calls.append(call))
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".lock"} == FILES
    assert calls[-1] == (sum(map(len, FILES.values())),) * 2
    n_sent = len(hub.sent("cdn/"))
    assert n_sent == len(FILES)
    assert pull_checkpoint(REPO) == folder
    assert len(hub.sent("cdn/")) == n_sent


@pytest.mark.parametrize(
    ("repo", "sentence"),
    [("sheep/pickled", "has no .safetensors files"), ("sheep/nothing", "there is no repository")],
)
def test_repository_without_a_checkpoint_gives_a_one_line_error(repo, sentence, hub):
    with pytest.raises(StoreError, match=sentence):
        pull_checkpoint(repo)


def test_checkpoint_given_as_a_model_suggests_the_command(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(StoreError, match=r"is a checkpoint: `woolly convert .* OUT` writes it as a GGUF file"):
        resolve(tmp_path)
