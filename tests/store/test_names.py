"""The names that people type: of the catalogue, of the hub in every form, and paths that come first."""

import re
from pathlib import Path

import pytest

from tests.store.hub import COMMIT
from tests.store.test_hub import DATA, REPO, hub, place
from woolly.errors import StoreError
from woolly.store import (
    HubName,
    all_families,
    catalogue_names,
    find_in_catalogue,
    is_model_name,
    pull,
    remote_name,
    resolve,
)
from woolly.store.hub import quant_of
from woolly.store.model_folder import models_folder

__all__ = ["hub"]

EVERYDAY = """llama3.2 llama3.2:1b llama3.1 qwen3:4b qwen3:0.6b qwen2.5 qwen2.5:0.5b qwen2.5-coder gemma3 gemma3:1b
    gpt-oss mistral phi4 deepseek-r1 deepseek-r1:1.5b smollm2:1.7b smollm3 granite3.3 granite4 nomic-embed-text bge-m3
    all-minilm qwen3-embedding tinyllama codellama"""


@pytest.mark.parametrize("name", EVERYDAY.split())
def test_everyday_names_are_known(name):
    named = find_in_catalogue(name)
    assert re.fullmatch(r"hf:[\w.-]+/[\w.-]+:[A-Z0-9_]+", str(named.hub))
    assert named.size.n_bytes > 0 and named.architecture and named.licence
    assert is_model_name(name)


@pytest.mark.parametrize(
    ("typed", "name", "hub_name"),
    [
        ("qwen3:4b", "qwen3:4b", "hf:Qwen/Qwen3-4B-GGUF:Q4_K_M"),
        ("Qwen3:4B-Q8_0", "qwen3:4b-q8_0", "hf:Qwen/Qwen3-4B-GGUF:Q8_0"),
        ("qwen3:4b-q4_K_M", "qwen3:4b", "hf:Qwen/Qwen3-4B-GGUF:Q4_K_M"),
        ("qwen3:4b-fp16", "qwen3:4b-f16", "hf:Qwen/Qwen3-4B-GGUF:F16"),
        ("llama3.2:latest", "llama3.2:3b", "hf:bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M"),
        ("llama3.2:1b-instruct-q8_0", "llama3.2:1b-q8_0", "hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Q8_0"),
        ("gpt-oss:20b", "gpt-oss:20b", "hf:ggml-org/gpt-oss-20b-GGUF:MXFP4"),
    ],
)
def test_ollama_names_are_understood(typed, name, hub_name):
    named = find_in_catalogue(typed)
    assert (named.name, str(named.hub)) == (name, hub_name)


def test_bare_family_name_means_a_downloaded_size(hub, tmp_path):
    hub.repos["Qwen/Qwen3-4B-GGUF"] = {"Qwen3-4B-Q4_K_M.gguf": DATA}
    found = pull("qwen3:4b")
    assert resolve("qwen3") == resolve("Qwen3:latest") == found
    with pytest.raises(StoreError, match="the model qwen3:8b is not downloaded yet"):
        resolve("qwen3:8b")


def test_name_table_is_consistent():
    assert len(all_families()) >= 120
    files = [(tag.hub_name(), tag.quant) for family in all_families().values() for tag in family.tags.values()]
    assert len(files) == len(set(files))
    for name in catalogue_names():
        assert (name == name.lower() and find_in_catalogue(name) is not None) or name.startswith("smollm2")
    for _, quant in files:
        assert quant_of(f"x-{quant}.gguf") == quant  # else no file of the hub would match


def test_unknown_size_error_lists_the_sizes_of_the_family():
    with pytest.raises(StoreError, match=r"llama3\.2 has no '7b' in the catalogue; it has 3b, 1b"):
        find_in_catalogue("llama3.2:7b")
    assert find_in_catalogue("sheep") is find_in_catalogue("") is None


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("org/repo", HubName("org/repo")),
        ("org/repo:Q4_K_M", HubName("org/repo", "Q4_K_M")),
        ("hf.co/org/repo", HubName("org/repo")),
        ("hf.co/org/repo:latest", HubName("org/repo")),
        ("huggingface.co/org/repo:Q8_0", HubName("org/repo", "Q8_0")),
        ("https://hf.co/org/repo/", HubName("org/repo")),
        ("https://huggingface.co/org/repo/tree/main", HubName("org/repo")),
        ("hf.co/org/repo/x.gguf", HubName("org/repo", file="x.gguf")),
        ("https://hf.co/o/r/blob/main/a/x.gguf?download=true", "https://hf.co/o/r/resolve/main/a/x.gguf"),
        ("huggingface.co/o/r/blob/main/x.gguf", "https://huggingface.co/o/r/resolve/main/x.gguf"),
        ("https://x.org/blob/main/x.gguf", "https://x.org/blob/main/x.gguf"),
        ("models/x.gguf", None),
        ("./org/repo", None),
        ("a/b/c", None),
        ("word", None),
    ],
)
def test_every_form_of_hub_name_is_understood(typed, meant):
    assert remote_name(typed) == meant


def test_all_forms_pull_the_same_file(hub, tmp_path):
    address = hub.url.removeprefix("http://")
    for form in (REPO, f"{REPO}:Q4_K_M", f"hf.co/{REPO}:Q4_K_M", f"{hub.url}/{REPO}", f"{address}/{REPO}:q4_k_m"):
        assert pull(form) == place(tmp_path), form
        assert resolve(form) == place(tmp_path), form
        assert is_model_name(form), form
    assert len(hub.sent("cdn/")) == 1
    assert pull(f"{hub.url}/{REPO}/blob/{COMMIT}/wool-Q8_0.gguf").read_bytes() == DATA + b"8"


def test_path_below_home_may_begin_with_a_tilde(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "x.gguf").write_bytes(DATA)
    assert resolve("~/x.gguf") == tmp_path / "x.gguf"
    with pytest.raises(StoreError, match=r"there is no file or model named '.*y\.gguf'"):
        resolve("~/y.gguf")
    monkeypatch.setenv("WOOLLY_HOME", "~/woolly")
    assert models_folder() == tmp_path / "woolly" / "models"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "~").mkdir()
    (tmp_path / "~" / "x.gguf").write_bytes(DATA)
    assert resolve("~/x.gguf") == Path("~/x.gguf")


def test_existing_path_wins_over_a_name(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path(REPO)
    path.mkdir(parents=True)
    for ask in (pull, resolve):
        with pytest.raises(StoreError, match="is a folder without GGUF files"):
            ask(REPO)
    path.rmdir()
    path.write_bytes(DATA)
    assert pull(REPO) == resolve(REPO) == path
    Path("mistral").write_bytes(DATA)
    assert pull("mistral") == resolve("mistral") == Path("mistral")
    assert hub.log == []


def test_catalogue_name_pulls_its_file_and_a_wrong_url_is_named(hub, tmp_path):
    hub.repos["Qwen/Qwen3-4B-GGUF"] = {"Qwen3-4B-Q4_K_M.gguf": DATA}
    with pytest.raises(
        StoreError, match=r"qwen3:4b is not downloaded yet; run `woolly pull qwen3:4b` \(~2\.5 GB, hf:Qwen/"
    ):
        resolve("qwen3:4b")
    path = pull("qwen3:4b")
    assert path == tmp_path / "home/models/hf/Qwen/Qwen3-4B-GGUF/Qwen3-4B-Q4_K_M.gguf"
    assert resolve("qwen3:4b") == resolve("QWEN3:4b") == resolve("Qwen/Qwen3-4B-GGUF") == path
    with pytest.raises(StoreError, match=r"Qwen/Qwen3-4B-GGUF has no Q8_0; it has Q4_K_M"):
        pull("qwen3:4b-q8_0")
    with pytest.raises(StoreError, match=r"run `woolly pull qwen3-vl` for the largest .*, or choose a size: 8b, "):
        resolve("qwen3-vl")
    with pytest.raises(StoreError, match="there is no repository hf:Qwen/Qwen3-8B-GGUF on the hub"):
        pull("qwen3")


def test_ollama_copy_is_used_for_a_catalogue_name(hub, tmp_path):
    store = tmp_path / "person" / ".ollama" / "models"
    manifest = store / "manifests" / "registry.ollama.ai" / "library" / "llama3.2" / "latest"
    manifest.parent.mkdir(parents=True)
    manifest.write_text('{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:a"}]}')
    (store / "blobs").mkdir()
    (store / "blobs" / "sha256-a").write_bytes(DATA)
    assert resolve("llama3.2") == resolve("llama3.2:latest") == store / "blobs" / "sha256-a"


def test_default_model_has_an_ollama_name_too(hub):
    for name in ("smollm2", "smollm2:latest", "smollm2:135m", "smollm2-135m"):
        with pytest.raises(StoreError, match="the model smollm2 is not downloaded yet"):
            resolve(name)
    assert find_in_catalogue("smollm2:135m") is None
    assert str(find_in_catalogue("smollm2:1.7b").hub) == "hf:HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF:Q4_K_M"
