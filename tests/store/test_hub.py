"""Pulling from the hub, over real HTTP against a stand-in for it."""

import os
import shutil

import pytest

from tests.store.hub import COMMIT, Hub
from woolly.errors import StoreError
from woolly.store import HubName, download, find_draft, find_projectors, list_models, pull, remove_model, resolve
from woolly.store.hub import choose_file, quant_of, shards_of

DATA = b"GGUF" + bytes(range(256)) * 8000  # 2 MB
REPO = "sheep/wool-GGUF"
VISION = "sheep/vision-GGUF"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    hub = Hub()
    hub.repos[REPO] = {
        "README.md": b"hello",
        "wool-Q8_0.gguf": DATA + b"8",
        "wool-Q4_K_M.gguf": DATA,
    }
    hub.repos[VISION] = {**hub.repos[REPO], "mmproj-wool-F16.gguf": DATA + b"m", "mmproj-wool-F32.gguf": DATA}
    for name in (
        "HF_TOKEN",
        "HF_HOME",
        "HTTP_PROXY",
        "http_proxy",
        "HTTPS_PROXY",
        "https_proxy",
        "ALL_PROXY",
        "all_proxy",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WOOLLY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setattr(download, "_PAUSE", 0.01)
    yield hub
    hub.close()


def place(tmp_path, name="wool-Q4_K_M.gguf"):
    return tmp_path / "home" / "models" / "hf" / REPO / name


def test_default_type_is_used_if_none_was_requested(hub, tmp_path):
    calls = []
    path = pull(f"hf:{REPO}", progress=lambda *call: calls.append(call))
    assert path == place(tmp_path)
    assert path.read_bytes() == DATA
    assert calls[-1] == (len(DATA), len(DATA))
    assert {name.name for name in path.parent.iterdir()} == {path.name, f".{path.name}.lock"}


def test_projector_comes_with_its_model_and_leaves_with_the_last(hub):
    calls = []
    path = pull(f"hf:{VISION}:Q4_K_M", progress=lambda *call: calls.append(call))
    assert calls[-1] == (2 * len(DATA) + 1, 2 * len(DATA) + 1)
    projector = path.with_name("mmproj-wool-F16.gguf")
    assert projector.read_bytes() == DATA + b"m"
    assert find_projectors(path) == [projector]
    assert [model.name for model in list_models()] == [f"hf:{VISION}/wool-Q4_K_M.gguf"]
    pull(f"hf:{VISION}:Q8_0")
    remove_model(f"hf:{VISION}:Q8_0")
    assert projector.is_file()
    remove_model(f"hf:{VISION}:Q4_K_M")
    assert not projector.exists()


def test_draft_file_is_fetched_on_request(hub):
    hub.repos[VISION] |= {"mtp-wool-Q8_0.gguf": DATA + b"g", "mtp-wool-F32.gguf": DATA, "MTP/mtp-wool-F16.gguf": DATA}
    path = pull(f"hf:{VISION}:Q4_K_M")
    assert find_draft(path) is None
    assert pull(f"hf:{VISION}:Q4_K_M", with_draft=True) == path
    assert find_draft(path) == (block := path.with_name("mtp-wool-Q8_0.gguf")) and block.read_bytes() == DATA + b"g"
    assert find_draft(pull(f"hf:{REPO}:Q4_K_M", with_draft=True)) is None
    hub.repos["sheep/folders"] = {"Q4_K_M/wool-Q4_K_M.gguf": DATA, "Q4/mtp-wool-F16.gguf": DATA}
    other = pull("hf:sheep/folders:Q4_K_M", with_draft=True)
    assert not list(other.parents[1].rglob("mtp-*"))


def test_projector_can_be_left_out(hub):
    assert find_projectors(pull(f"hf:{VISION}:Q4_K_M", with_projector=False)) == []


def test_type_or_file_is_selected_by_name(hub, tmp_path):
    assert pull(f"hf:{REPO}:q8_0") == place(tmp_path, "wool-Q8_0.gguf")
    assert pull(f"hf:{REPO}/wool-Q4_K_M.gguf") == place(tmp_path)
    assert resolve(f"hf:{REPO}:Q8_0") == place(tmp_path, "wool-Q8_0.gguf")


def test_local_files_are_not_fetched_again(hub):
    pull(f"hf:{REPO}:Q4_K_M")
    n = len(hub.log)
    pull(f"hf:{REPO}:Q4_K_M")
    assert len(hub.log) == n


def test_interrupted_download_resumes_where_it_ended(hub, tmp_path):
    hub.cuts = 2
    assert pull(f"hf:{REPO}").read_bytes() == DATA
    ranges = [wanted for _, wanted, _ in hub.sent("cdn/")]
    assert ranges == [None, f"bytes={len(DATA) // 2}-", f"bytes={len(DATA) // 2 + len(DATA) // 4}-"]


def test_abandoned_pull_resumes_at_the_next(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "_ATTEMPTS", 1)
    hub.cuts = 1
    with pytest.raises(StoreError, match=rf"connection was cut\): .* 1 MB are kept, and `woolly pull hf:{REPO}`"):
        pull(f"hf:{REPO}")
    partial = place(tmp_path).with_name("wool-Q4_K_M.gguf.partial")
    assert partial.read_bytes() == DATA[: len(DATA) // 2]
    assert not place(tmp_path).exists()
    with pytest.raises(StoreError, match=f"run `woolly pull hf:{REPO}`"):
        resolve(f"hf:{REPO}")
    hub.log.clear()
    assert pull(f"hf:{REPO}").read_bytes() == DATA
    assert [wanted for _, wanted, _ in hub.sent("cdn/")] == [f"bytes={len(DATA) // 2}-"]
    assert not partial.exists()


def test_changed_file_is_fetched_from_its_start(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "_ATTEMPTS", 1)
    hub.cuts = 1
    with pytest.raises(StoreError, match="cut"):
        pull(f"hf:{REPO}")
    hub.changed = True
    hub.repos[REPO]["wool-Q4_K_M.gguf"] = DATA[:-1] + b"!"
    assert pull(f"hf:{REPO}").read_bytes() == DATA[:-1] + b"!"


def test_server_without_ranges_sends_everything_again(hub):
    hub.cuts, hub.ranges = 1, False
    assert pull(f"hf:{REPO}").read_bytes() == DATA


def test_wrong_checksum_is_an_error_and_leaves_nothing(hub, tmp_path, monkeypatch):
    real = hub.file
    monkeypatch.setattr(hub, "file", lambda request, data: real(request, data[:-1] + b"?"))
    with pytest.raises(StoreError, match=r"was removed because its checksum is \w{64}, not the expected"):
        pull(f"hf:{REPO}")
    assert [path.name for path in place(tmp_path).parent.iterdir()] == [".wool-Q4_K_M.gguf.lock"]


def test_full_disk_is_reported_with_both_numbers(hub, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 10**6))
    with pytest.raises(StoreError, match=r"needs another 3 MB, but the disk of .* has 1 MB free; free some space"):
        pull(f"hf:{REPO}")


def test_token_opens_a_gated_repository_and_is_sent_only_to_the_hub(hub, monkeypatch):
    hub.token = "secret"
    with pytest.raises(StoreError, match=r"gated; accept its terms.*HF_TOKEN"):
        pull(f"hf:{REPO}")
    monkeypatch.setenv("HF_TOKEN", "secret")
    hub.log.clear()
    pull(f"hf:{REPO}")
    assert all(authorization == "Bearer secret" for path, _, authorization in hub.log if "cdn" not in path)
    assert all(authorization is None for _, _, authorization in hub.sent("cdn/"))


def test_all_shards_are_fetched_and_the_first_is_returned(hub, tmp_path):
    names = shards_of("Q6_K/wool-Q6_K-00001-of-00003.gguf")
    hub.repos[REPO] |= {name: DATA + name.encode() for name in names}
    calls = []
    first = pull(f"hf:{REPO}:Q6_K", progress=lambda *call: calls.append(call))
    assert first == place(tmp_path, names[0])
    assert all(place(tmp_path, name).read_bytes() == DATA + name.encode() for name in names)
    total = sum(len(DATA) + len(name) for name in names)
    assert calls[-1] == (total, total)
    (stored,) = list_models()
    assert (stored.name, stored.n_bytes, stored.owner) == (f"hf:{REPO}/{names[0]}", total, "woolly")
    assert remove_model(f"hf:{REPO}:Q6_K").n_bytes == total
    assert list_models() == []


def test_huggingface_hub_cache_is_used_in_place(hub, tmp_path):
    blob = tmp_path / "cache" / "models--sheep--wool-GGUF" / "snapshots" / COMMIT_FOLDER / "wool-Q4_K_M.gguf"
    blob.parent.mkdir(parents=True)
    blob.write_bytes(DATA)
    assert pull(f"hf:{REPO}:Q4_K_M") == resolve(f"hf:{REPO}") == blob
    assert hub.log == []
    (stored,) = list_models()
    assert (stored.name, stored.owner) == (f"hf:{REPO}/wool-Q4_K_M.gguf", "Hugging Face")
    with pytest.raises(StoreError, match="belongs to Hugging Face: remove it there"):
        remove_model(stored.name)
    assert blob.exists()


COMMIT_FOLDER = "c" * 40


def test_invalid_requests_give_a_one_line_error(hub):
    for spec, expected in {
        "hf:sheep": "expected hf:org/repo, hf:org/repo:Q4_K_M",
        "hf:sheep/../../etc": "expected hf:org/repo",
        "hf:sheep/wool/../../x.gguf": "expected hf:org/repo",
        "hf:sheep/wool/.x.gguf": "expected hf:org/repo",
        "hf:sheep/wool/a\\x.gguf": "expected hf:org/repo",
        "hf:sheep/wool/a\nx.gguf": "expected hf:org/repo",
        "hf:sheep/none": "there is no repository hf:sheep/none on the hub, or it is private",
        f"hf:{REPO}:Q2_K": "has no Q2_K; it has Q8_0, Q4_K_M|has no Q2_K; it has Q4_K_M, Q8_0",
        f"hf:{REPO}/other.gguf": r"has no other\.gguf; it has wool-Q4_K_M\.gguf, wool-Q8_0\.gguf",
    }.items():
        with pytest.raises(StoreError, match=expected):
            pull(spec)


def test_no_network_gives_a_one_line_error(hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    reported = (
        r"cannot reach 127\.0\.0\.1:9 for hf:sheep.* \(Connection refused\): check the network; models here: none"
    )
    with pytest.raises(StoreError, match=reported):
        pull(f"hf:{REPO}")


def test_unresolvable_host_and_offline_have_messages(hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://wool.invalid")
    reported = r"cannot reach wool\.invalid for .* \(there is no network, or no such host\): check the network"
    for spec in (f"hf:{REPO}", "http://wool.invalid/x.gguf"):
        with pytest.raises(StoreError, match=reported) as error:
            pull(spec)
        assert "Errno" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "quant"),
    [
        ("wool-Q4_K_M.gguf", "Q4_K_M"),
        ("wool.Q4_0.gguf", "Q4_0"),
        ("wool-135m-instruct-q8_0.gguf", "Q8_0"),
        ("UD-Q4_K_XL/wool-UD-Q4_K_XL-00001-of-00002.gguf", "UD-Q4_K_XL"),
        ("wool-IQ4_XS.gguf", "IQ4_XS"),
        ("wool-f16.gguf", "F16"),
        ("wool-MXFP4_MOE.gguf", "MXFP4_MOE"),
        ("wool-NVFP4.gguf", "NVFP4"),
        ("Qwen2.5-7B.gguf", None),
    ],
)
def test_types_are_read_from_names(name, quant):
    assert quant_of(name) == quant


def test_ambiguous_choice_is_asked_back():
    wanted = HubName("a/b")
    assert choose_file(["x.gguf", "mmproj.gguf"], wanted) == "x.gguf"
    assert choose_file(["a-x.gguf", "eagle3-x.gguf", "mtp-x.gguf"], wanted) == "a-x.gguf"
    heads = ["x-Q8_0.gguf", "mtp-x-Q8_0.gguf", "mtp-x-Q4_K_M.gguf"]
    assert choose_file(heads, HubName("a/b", quant="Q8_0")) == "x-Q8_0.gguf"
    assert choose_file(heads, HubName("a/b", file="mtp-x-Q4_K_M.gguf")) == "mtp-x-Q4_K_M.gguf"
    with pytest.raises(StoreError, match="a/b has several files; choose one, as in hf:a/b:QUANT:"):
        choose_file(["x-Q2_K.gguf", "x-Q3_K_S.gguf"], wanted)
    with pytest.raises(StoreError, match="has no GGUF files"):
        choose_file(["model.safetensors"], wanted)


@pytest.mark.parametrize("name", ["../../../../x-Q4_0.gguf", "/ABS/x-Q4_0.gguf", "a/../x-Q4_0.gguf", ".x-Q4_0.gguf",
    "a\\x-Q4_0.gguf", "a\0x-Q4_0.gguf", "a/./x-Q4_0.gguf"])  # fmt: skip
def test_mirror_cannot_write_outside_the_repository_folder(hub, tmp_path, name):
    name = name.replace("ABS", str(tmp_path)[1:])
    hub.repos["sheep/evil"] = {name: DATA}
    with pytest.raises(StoreError, match="path may leave its folder"):
        pull("hf:sheep/evil:Q4_0")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_files_keep_their_names_for_any_name_or_repository(hub, tmp_path):
    hub.repos["sheep/resolve"] = {"with space-Q4_0.gguf": DATA}
    path = pull("hf:sheep/resolve:Q4_0")
    assert path == tmp_path / "home" / "models" / "hf" / "sheep" / "resolve" / "with space-Q4_0.gguf"
    assert path.read_bytes() == DATA
    assert resolve("hf:sheep/resolve/with space-Q4_0.gguf") == path  # the name that `woolly list` gives
    assert pull("hf:sheep/resolve/with space-Q4_0.gguf") == path


def test_complete_but_unverified_download_is_not_fetched_again(hub, tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(download, "_check", killed)
        with pytest.raises(KeyboardInterrupt):
            pull(f"hf:{REPO}")
    hub.log.clear()
    assert pull(f"hf:{REPO}").read_bytes() == DATA
    assert hub.sent("cdn/") == []


def test_file_is_synced_before_it_is_renamed(hub, tmp_path, monkeypatch):
    named = []
    monkeypatch.setattr(os, "fsync", lambda _: named.append(place(tmp_path).exists()))
    pull(f"hf:{REPO}")
    assert named == [False]


def test_only_unambiguous_names_are_removed(hub, tmp_path):
    pull(f"hf:{REPO}:Q8_0")
    with pytest.raises(StoreError, match=r"no model named .* was pulled"):
        remove_model(f"hf:{REPO}/nosuch-Q8_0.gguf")
    with pytest.raises(StoreError, match=r"no model named .* was pulled"):
        remove_model(f"hf:{REPO}:Q4_K_M")
    pull(f"hf:{REPO}:Q4_K_M")
    with pytest.raises(StoreError, match=r"may mean hf:\S+Q4_K_M.gguf or hf:\S+Q8_0.gguf; choose the one"):
        remove_model(f"hf:{REPO}")
    assert place(tmp_path).exists()
    assert place(tmp_path, "wool-Q8_0.gguf").exists()
    assert remove_model(f"hf:{REPO}:q8_0").path == place(tmp_path, "wool-Q8_0.gguf")
    assert remove_model(f"hf:{REPO}").path == place(tmp_path)


@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_forbidden_hub_is_reported_and_not_contacted(hub, monkeypatch, name):
    monkeypatch.setenv(name, "1")
    n_before = len(hub.log)
    for wanted in (f"hf:{REPO}", f"{hub.url}/{REPO}/resolve/main/wool-Q4_K_M.gguf"):
        with pytest.raises(StoreError, match=r"HF_HUB_OFFLINE is set, so .* is not downloaded; unset it, because"):
            pull(wanted)
    assert len(hub.log) == n_before
    monkeypatch.delenv(name)
    pull(f"hf:{REPO}")
    monkeypatch.setenv(name, "1")
    with pytest.raises(StoreError, match="use a model that is here: hf:sheep/wool-GGUF"):
        pull(f"hf:{REPO}:q8_0")
    assert resolve(f"hf:{REPO}").read_bytes() == DATA


def test_offline_reaches_no_server(hub, monkeypatch):
    monkeypatch.setenv("WOOLLY_OFFLINE", "1")
    monkeypatch.setenv("HF_ENDPOINT", "https://elsewhere.example")
    n_before = len(hub.log)
    for wanted in (f"{hub.url}/{REPO}/resolve/main/wool-Q4_K_M.gguf", f"hf:{REPO}", "smollm2"):
        with pytest.raises(StoreError, match="WOOLLY_OFFLINE is set, as --offline does"):
            pull(wanted)
    assert len(hub.log) == n_before


def test_whisper_cpp_file_is_pulled_by_name(hub, tmp_path):
    repo, data = "ggerganov/whisper.cpp", b"lmgg" + bytes(100)
    hub.repos[repo] = {"ggml-base.bin": data, "ggml-base.en-q5_1.bin": data + b"e", "ggml-tiny.bin": b"<html>"}
    path = pull(f"hf:{repo}/ggml-base.en-q5_1.bin")
    assert path == tmp_path / "home" / "models" / "hf" / repo / "ggml-base.en-q5_1.bin"
    assert path.read_bytes() == data + b"e"
    assert pull("whisper:base.en-q5_1") == resolve(f"hf:{repo}/ggml-base.en-q5_1.bin") == path
    assert pull("whisper").name == "ggml-base.bin"
    assert [model.name for model in list_models()] == ["whisper:base", "whisper:base.en-q5_1"]
    assert remove_model("whisper:latest").name == "whisper:base"
    assert remove_model(f"hf:{repo}/ggml-base.en-q5_1.bin").path == path
    with pytest.raises(StoreError, match=r"it is not a file of whisper\.cpp"):
        pull("whisper:tiny")
    with pytest.raises(StoreError, match=rf"{repo} has several files; choose one, as in hf:{repo}/ggml-base\.bin:"):
        pull(f"hf:{repo}")
    with pytest.raises(StoreError, match=r"has no ggml-x\.bin; it has ggml-base\.bin"):
        pull(f"hf:{repo}/ggml-x.bin")


def test_page_url_of_a_whisper_cpp_file_works(hub, tmp_path):
    hub.repos["ggerganov/whisper.cpp"] = {"ggml-base.en.bin": b"lmgg" + bytes(100)}
    path = pull(f"{hub.url}/ggerganov/whisper.cpp/blob/{COMMIT}/ggml-base.en.bin")
    assert path == tmp_path / "home" / "models" / "ggml-base.en.bin"
    assert pull(f"{hub.url}/ggerganov/whisper.cpp/resolve/{COMMIT}/ggml-base.en.bin?download=true") == path
    assert [model.name for model in list_models()] == ["ggml-base.en"]
    assert remove_model("ggml-base.en").path == path
