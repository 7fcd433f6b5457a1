"""Projectors: the second file of a model that sees, beside the first."""

import json

import pytest

from woolly.store import find_projectors
from woolly.store.companions import best_projector
from woolly.store.file_formats import is_projector


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    monkeypatch.setenv("WOOLLY_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    return tmp_path


def put(folder, *names):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"GGUF")
    return folder


@pytest.mark.parametrize(
    ("names", "model", "best"),
    [
        (["mmproj-F32.gguf", "mmproj-BF16.gguf", "mmproj-F16.gguf"], "gemma-3-4b-it-Q4_K_M.gguf", "mmproj-F16.gguf"),
        (["mmproj-gemma-3-4b-it-Q8_0.gguf"], "gemma-3-4b-it-Q4_K_M.gguf", "mmproj-gemma-3-4b-it-Q8_0.gguf"),
        (["mmproj-F16.gguf", "mmproj-wool-2b-Q8_0.gguf"], "wool-2b-Q4_0.gguf", "mmproj-wool-2b-Q8_0.gguf"),
        (["llava-v1_1-mmproj-f16.gguf"], "llava-v1_1-int4.gguf", "llava-v1_1-mmproj-f16.gguf"),
        (["mmproj-model-f16.gguf"], "BF16/wool-BF16-00001-of-00002.gguf", "mmproj-model-f16.gguf"),
        (["wool-Q4_0.gguf", "README.md"], "wool-Q4_0.gguf", None),
    ],
)
def test_projector_of_a_repository(names, model, best):
    assert best_projector(names, model) == best


def test_unusually_named_projector_is_used_only_in_a_repository():
    assert best_projector(["mmproj-goat-F16.gguf"], "wool-Q4_0.gguf") == "mmproj-goat-F16.gguf"
    assert best_projector(["mmproj-goat-F16.gguf"], "wool-Q4_0.gguf", of_one_model=False) is None


def test_projector_next_to_a_file_is_found(home):
    folder = put(home / "files", "wool-Q4_0.gguf", "mmproj-wool-f16.gguf", "mmproj-goat-f16.gguf", "goat-Q8_0.gguf")
    assert find_projectors(folder / "wool-Q4_0.gguf") == [folder / "mmproj-wool-f16.gguf"]
    assert find_projectors(folder / "goat-Q8_0.gguf") == [folder / "mmproj-goat-f16.gguf"]
    assert find_projectors(put(home / "other", "wool.gguf") / "wool.gguf") == []


@pytest.mark.parametrize(
    "folder",
    ["home/models/hf/sheep/wool-GGUF", "cache/models--sheep--wool/snapshots/abc", "person/.lmstudio/models/sheep/wool"],
)
def test_projector_of_a_repository_is_found_above_the_folder_of_a_type(home, folder):
    top = put(home / folder, "mmproj-other-name-F16.gguf")
    put(top / "BF16", "wool-BF16-00001-of-00002.gguf")
    assert find_projectors(top / "BF16" / "wool-BF16-00001-of-00002.gguf") == [top / "mmproj-other-name-F16.gguf"]
    assert find_projectors(top / "wool-Q4_0.gguf") == [top / "mmproj-other-name-F16.gguf"]


def test_ollama_projector_is_found_by_its_manifest(home):
    store = home / "person" / ".ollama" / "models"
    model, projector = "sha256:" + "a" * 64, "sha256:" + "b" * 64
    layers = [
        {"mediaType": "application/vnd.ollama.image.model", "digest": model},
        {"mediaType": "application/vnd.ollama.image.projector", "digest": projector},
    ]
    manifest = store / "manifests" / "registry.ollama.ai" / "library" / "llava" / "7b"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"layers": layers}))
    blobs = put(store / "blobs", model.replace(":", "-"), projector.replace(":", "-"))
    assert find_projectors(blobs / model.replace(":", "-")) == [blobs / projector.replace(":", "-")]
    manifest.write_text(json.dumps({"layers": layers[:1]}))
    assert find_projectors(blobs / model.replace(":", "-")) == []


def test_folder_of_that_name_is_no_projector():
    assert is_projector("mmproj-F16.gguf")
    assert not is_projector("mmproj/wool.gguf")
