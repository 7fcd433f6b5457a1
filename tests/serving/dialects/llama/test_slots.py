"""Slots that are saved, restored and erased, and routes that are off unless a flag switches them on."""

import os
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from tests.engine.test_adapters import lora, write_lora
from woolly.serving.dialects.llama.slot_files import read_slot, write_slot
from woolly.serving.errors import ApiError

PROMPT = "the quick brown fox jumps over the lazy dog and runs into the dark wood"


@pytest.fixture
def saving(app_with, tmp_path):
    with app_with(slot_save_path=tmp_path, parallel=2) as client:
        yield client


def ask(client, **fields):
    return client.post("/completion", json={"prompt": PROMPT, "n_predict": 4, "temperature": 0, **fields}).json()


def test_erased_slot_is_restored(saving, tmp_path):
    first = ask(saving, id_slot=1)
    assert first["id_slot"] == 1 and first["timings"]["cache_n"] == 0
    saved = saving.post("/slots/1?action=save", json={"filename": "one.bin"}).json()
    n_held = first["tokens_evaluated"] + 3  # the last token of an answer is never computed
    assert saved["n_saved"] == n_held and saved["n_written"] == (tmp_path / "one.bin").stat().st_size
    n_cached = ask(saving, id_slot=1)["timings"]["cache_n"]
    assert n_cached >= 32
    assert saving.post("/slots/1?action=erase").json() == {"id_slot": 1, "n_erased": n_held}
    assert ask(saving, id_slot=1)["timings"]["cache_n"] == 0
    saving.post("/slots/1?action=erase")
    restored = saving.post("/slots/0?action=restore", json={"filename": "one.bin"}).json()
    assert restored["n_restored"] == n_held and restored["n_read"] == saved["n_written"]
    again = ask(saving, id_slot=0)
    assert again["timings"]["cache_n"] == n_cached and again["content"] == first["content"]


def test_slot_with_an_adapter_is_erased_and_an_empty_slot_says_so(app_with, tiny_folder, tmp_path):
    adapter = write_lora(tmp_path / "adapter.gguf", lora(0))
    with app_with(model=str(tiny_folder / "tiny.gguf"), models_dir=None, lora=(str(adapter),), parallel=2) as client:
        n_held = ask(client, id_slot=0)["tokens_evaluated"] + 3
        assert ask(client, id_slot=1)["timings"]["cache_n"] >= 32
        assert client.post("/slots/0?action=erase").json()["n_erased"] == n_held
        assert client.post("/slots/1?action=erase").json()["n_erased"] == 0  # the same text, which is gone
        assert ask(client, id_slot=1)["timings"]["cache_n"] == 0


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/slots/0?action=save", {"filename": "../x"}, "invalid file name"),
        ("/slots/0?action=save", {}, "filename"),
        ("/slots/0?action=restore", {"filename": "missing.bin"}, "cannot read"),
        ("/slots/0?action=restore", {"filename": "wrong.bin"}, "not a Woolly slot file"),
        ("/slots/0?action=save", {"filename": "wrong.bin"}, "not a Woolly slot file"),
        ("/slots/0?action=save", {"filename": "folder"}, "not a Woolly slot file"),
        ("/slots/0?action=restore", {"filename": "folder"}, "not a Woolly slot file"),
        ("/slots/0?action=save", {"filename": "pipe"}, "not a Woolly slot file"),
        ("/slots/0?action=restore", {"filename": "pipe"}, "not a Woolly slot file"),
        ("/slots/7?action=restore", {"filename": "wrong.bin"}, "expected 0 to 1, but got"),
        ("/slots/0?action=copy", {"filename": "x"}, "save, restore or erase"),
        ("/completion", {"prompt": "a", "id_slot": 9}, "expected at most 1, but got 9"),
    ],
)
def test_save_and_restore_errors_are_named(saving, tmp_path, path, body, says):
    (tmp_path / "wrong.bin").write_bytes(b"x" * 100)
    (tmp_path / "folder").mkdir()
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
    else:
        (tmp_path / "pipe").write_bytes(b"")
    before = sorted(tmp_path.iterdir())
    reply = saving.post(path, json=body)
    assert (tmp_path / "wrong.bin").read_bytes() == b"x" * 100 and sorted(tmp_path.iterdir()) == before
    assert reply.status_code == 400 and says in reply.json()["error"]["message"], reply.text


def test_slot_file_belongs_to_the_key_that_saved_it(app_with, tmp_path):
    one, two = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
    file = {"filename": "one.bin"}
    with app_with(slot_save_path=tmp_path, api_key=("one", "two")) as client:
        for _ in range(2):  # its owner may replace it
            assert client.post("/slots/0?action=save", json=file, headers=one).status_code == 200
        for action in ("save", "restore"):
            reply = client.post(f"/slots/0?action={action}", json=file, headers=two)
            assert reply.status_code == 400 and "another client" in reply.json()["error"]["message"]
        assert client.post("/slots/0?action=restore", json=file, headers=one).status_code == 200


def test_concurrent_saves_to_one_name_do_not_collide(tmp_path):
    info = SimpleNamespace(architecture="llama", parameters=1, size_bytes=1)
    path = tmp_path / "one.bin"
    with ThreadPoolExecutor(8) as pool:
        sizes = set(pool.map(lambda i: write_slot(path, info, "me", [i] * 100), range(200)))
    tokens, n_bytes = read_slot(path, info, "me", 200)
    assert sizes == {n_bytes} and len(tokens) == 100 and len(set(tokens)) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_slot_files_of_an_owner_are_limited(tmp_path, monkeypatch):
    monkeypatch.setattr("woolly.serving.dialects.llama.slot_files._MAX_FILES", 3)
    info = SimpleNamespace(architecture="llama", parameters=1, size_bytes=1)
    for name in ("a", "b", "c"):
        write_slot(tmp_path / name, info, "me", [1])
    with pytest.raises(ApiError, match="the limit of 3 slot files is reached") as refused:
        write_slot(tmp_path / "d", info, "me", [1])
    assert refused.value.status == 413 and not (tmp_path / "d").exists() and len(list(tmp_path.iterdir())) == 3
    write_slot(tmp_path / "c", info, "me", [2])  # a name that is there
    write_slot(tmp_path / "d", info, "you", [1])


def test_disabled_routes_answer_501(app_with):
    with app_with(metrics=False) as client:
        for method, path in (("GET", "/metrics"), ("POST", "/props"), ("POST", "/slots/0?action=save")):
            reply = client.request(method, path, json={} if method == "POST" else None)
            assert reply.status_code == 501 and reply.json()["error"]["type"] == "not_supported_error", path


def test_props_can_be_set_with_the_flag(app_with):
    with app_with(props=True) as client:
        assert client.post("/props", json={"colour": 1}).json() == {"success": True}


def test_metrics_have_llama_server_names_too(app_with):
    with app_with() as client:
        ask(client)
        ask(client)
        reply = client.get("/metrics")
        found = dict(line.split(" ") for line in reply.text.splitlines() if line.startswith("llamacpp:"))
        assert float(found["llamacpp:tokens_predicted_total"]) == 8 and "Process-Start-Time-Unix" in reply.headers
        assert float(found["llamacpp:prompt_tokens_cached_total"]) >= 32
        assert float(found["llamacpp:n_decode_total"]) >= 8 and float(found["llamacpp:predicted_tokens_seconds"]) > 0
        again = dict(line.split(" ") for line in client.get("/metrics").text.splitlines() if line[:9] == "llamacpp:")
        assert float(again["llamacpp:predicted_tokens_seconds"]) == 0  # nothing ran since
