"""Models of other programs are found, used in place, and never changed."""

import json

import pytest

from woolly.errors import StoreError
from woolly.store import is_model_name, list_models, remove_model, resolve


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WOOLLY_HOME", str(tmp_path / "woolly"))
    for name in ("OLLAMA_MODELS", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def manifest(home, *parts, digest="sha256:abc", kind="application/vnd.ollama.image.model"):
    store = home / ".ollama" / "models"
    path = store.joinpath("manifests", *parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    layers = [{"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:t"}]
    path.write_text(json.dumps({"layers": [*layers, {"mediaType": kind, "digest": digest}]}))
    blob = store / "blobs" / digest.replace(":", "-")
    blob.parent.mkdir(exist_ok=True)
    blob.write_bytes(b"GGUF....")
    return blob


def test_ollama_models_have_their_names(home):
    blob = manifest(home, "registry.ollama.ai", "library", "llama3.2", "latest")
    manifest(home, "registry.ollama.ai", "sheep", "wool", "7b", digest="sha256:def")
    manifest(home, "registry.ollama.ai", "library", "adapter", "x", kind="other")
    (home / ".ollama" / "models" / "manifests" / "registry.ollama.ai" / "library" / "llama3.2" / "bad").write_text("{")
    assert [(m.name, m.owner, m.n_bytes) for m in list_models()] == [
        ("ollama:llama3.2:latest", "Ollama", 8),
        ("ollama:sheep/wool:7b", "Ollama", 8),
    ]
    assert resolve("ollama:llama3.2") == resolve("ollama:llama3.2:latest") == blob
    with pytest.raises(StoreError, match="belongs to Ollama: remove it there"):
        remove_model("ollama:llama3.2")
    assert blob.exists()


def test_manifest_cannot_escape_the_store(home):
    manifest(home, "registry.ollama.ai", "library", "evil", "latest")
    path = home / ".ollama/models/manifests/registry.ollama.ai/library/evil/latest"
    path.write_text(path.read_text().replace("sha256:abc", "../../../secret"))
    (home / "secret").write_bytes(b"GGUF")
    assert list_models() == []


def test_lm_studio_models_are_found_in_its_configured_folder(home):
    for folder, name in ((".lmstudio", "a-Q4_K_M.gguf"), ("elsewhere", "b-Q8_0.gguf")):
        path = home / folder / "models" / "sheep" / "wool-GGUF" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(b"GGUF")
        path.with_name("mmproj-x.gguf").touch()
    (home / ".lmstudio-home-pointer").write_text(str(home / "elsewhere") + "\n")
    assert sorted(model.name for model in list_models()) == [
        "lmstudio:sheep/wool-GGUF/a-Q4_K_M.gguf",
        "lmstudio:sheep/wool-GGUF/b-Q8_0.gguf",
    ]
    assert resolve("lmstudio:sheep/wool-GGUF/b-Q8_0") == home / "elsewhere/models/sheep/wool-GGUF/b-Q8_0.gguf"


def test_misspelt_name_suggests_the_model_of_another_program(home):
    manifest(home, "registry.ollama.ai", "library", "llama3.2", "latest")
    with pytest.raises(StoreError, match=r"did you mean ollama:llama3\.2:latest\?"):
        resolve("ollama:lama3.2:latest")


@pytest.mark.parametrize(
    ("text", "is_name"),
    [
        ("smollm2", True),
        ("hf:a/b", True),
        ("https://x.org/a.gguf", True),
        ("ollama:x", True),
        ("Why is the sky blue?", False),
        ("", False),
        ("https://x.org/a.gguf tell me", False),
        ("hello", False),
    ],
)
def test_prompts_are_distinguished_from_names(home, text, is_name):
    assert is_model_name(text) == is_name
