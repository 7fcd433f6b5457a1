"""Models are listed without loading, and confined to their folder."""

import time
from pathlib import Path

import pytest

from tests.gguf.build import array, entry, gguf_bytes, string
from woolly.gguf.values import ValueType
from woolly.serving.errors import ApiError
from woolly.serving.model_manager import manager as models_module
from woolly.serving.model_manager import model_info
from woolly.serving.model_manager.catalog import ModelCatalog


def refused(action):
    with pytest.raises(ApiError) as caught:
        action()
    return caught.value


def test_folder_is_listed_from_headers_only(folder, monkeypatch):
    monkeypatch.setattr(models_module, "open_model", None)
    (folder / "broken.gguf").write_bytes(b"GGUF and no more")
    (folder / "notes.txt").write_text("no model")
    one, two = ModelCatalog(folder).list()
    assert (one.name, one.architecture, one.state, one.n_ctx_train) == ("one", "llama", "unloaded", 512)
    assert (two.name, two.description, two.size_bytes) == ("two", "qwen2", (folder / "two.gguf").stat().st_size)
    assert one.parameters > 0 and one.metadata["general.architecture"] == "llama"


def test_configured_model_may_be_anywhere_with_another_name(folder):
    catalog = ModelCatalog(folder, str(folder.parent / "outside.gguf"), ("mine",))
    assert [info.name for info in catalog.list()] == ["mine", "one", "two"]
    assert catalog.find("mine").architecture == "qwen3"
    assert catalog.find("two.gguf").name == "two"


@pytest.mark.parametrize(
    "name", ["../outside", "outside", "/etc/passwd", "..", "", "one\0", "x" * 10_000, "link", "way/outside"]
)
def test_no_name_escapes_the_folder(folder, name):
    (folder / "link.gguf").symlink_to(folder.parent / "outside.gguf")
    (folder / "way").symlink_to(folder.parent)
    assert refused(lambda: ModelCatalog(folder).find(name)).status == 404


@pytest.mark.parametrize(
    "path",
    ["../outside.gguf", "/etc/passwd", "link.gguf", "way/outside.gguf", "a/../../outside.gguf", "loop.gguf", "\0"],
)
def test_no_path_escapes_the_folder(folder, path):
    (folder / "link.gguf").symlink_to(folder.parent / "outside.gguf")
    (folder / "way").symlink_to(folder.parent)
    (folder / "loop.gguf").symlink_to(folder / "loop.gguf")
    error = refused(lambda: ModelCatalog(folder).by_path(path))
    assert error.status in (403, 404)
    assert str(folder.parent) not in error.message
    if path != "loop.gguf":
        assert error.code == "access_denied"


def test_symlink_within_the_folder_is_allowed(folder):
    (folder / "alias.gguf").symlink_to(folder / "one.gguf")
    assert ModelCatalog(folder).by_path("alias.gguf").architecture == "llama"


def test_broken_file_is_reported_without_its_path(folder):
    (folder / "broken.gguf").write_bytes(b"GGUF and no more")
    catalog = ModelCatalog(folder)
    catalog.list()  # reads the headers, as the page does first
    errors = [refused(lambda: catalog.find("broken")) for _ in range(2)]
    errors.append(refused(lambda: ModelCatalog(folder).find("broken")))
    assert {error.status for error in errors} == {422} and str(folder) not in errors[0].message
    assert len({error.message for error in errors}) == 1
    assert "broken.gguf" in errors[0].message and "not a valid model file" not in errors[0].message


@pytest.mark.parametrize(("step", "line"), [("trace", "model cannot be traced"), ("open_gguf", "model cannot be read")])
def test_one_bad_file_does_not_break_the_list(folder, monkeypatch, caplog, step, line):
    original = getattr(model_info, step)

    def fails(file):
        if Path(getattr(file, "path", file)).name == "one.gguf":
            raise ZeroDivisionError("no check expected this")
        return original(file)

    monkeypatch.setattr(model_info, step, fails)
    catalog = ModelCatalog(folder)
    with caplog.at_level("WARNING", "woolly.serving"):
        for _ in range(2):
            listed = {info.name: info.unsupported for info in catalog.list()}
    assert [record.getMessage() for record in caplog.records] == [line]
    if step == "trace":
        assert listed == {"one": "the header has invalid values for its architecture", "two": None}
    else:
        assert listed == {"two": None} and refused(lambda: catalog.find("one")).status == 422


def test_non_gguf_files_are_logged_at_the_start(folder, caplog):
    ModelCatalog(folder)
    assert not caplog.records
    (folder / "bad.gguf").write_bytes(b"not a model")
    (folder / "empty.gguf").touch()
    ModelCatalog(folder)
    (line,) = [record for record in caplog.records if record.getMessage() == "models skipped"]
    assert (line.count, line.names, line.reason) == (2, "bad.gguf, empty.gguf", "these are not GGUF files")


def test_symlinks_out_of_the_folder_are_served_only_if_allowed(folder, tmp_path, caplog):
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    (folder / "one.gguf").rename(outside / "far.gguf")
    (folder / "near.gguf").symlink_to(outside / "far.gguf")
    catalog = ModelCatalog(folder)
    (line,) = [record for record in caplog.records if record.getMessage() == "models skipped"]
    assert line.names == "near.gguf" and "--models-follow-links" in line.reason
    with pytest.raises(ApiError, match="'near' is a symbolic link that leads out of the models folder") as refused:
        catalog.find("near")
    assert refused.value.status == 404
    caplog.clear()
    following = ModelCatalog(folder, follows_links=True)
    assert following.find("near").name == "near" and following.by_path("near.gguf").name == "near"
    assert not caplog.records
    for path in ("../elsewhere/far.gguf", str(outside / "far.gguf")):
        with pytest.raises(ApiError, match="leads out of the models folder"):
            following.by_path(path)


def test_symlinks_out_of_the_folder_are_logged_once(folder, caplog):
    for name in ("link", "other"):
        (folder / f"{name}.gguf").symlink_to(folder.parent / "outside.gguf")
    with caplog.at_level("WARNING", "woolly.serving"):
        catalog = ModelCatalog(folder)
        assert [info.name for info in catalog.list()] == ["one", "two"]
    (line,) = [record for record in caplog.records if record.getMessage() == "models skipped"]
    assert line.count == 2 and "links that lead out of the models folder are not served" in line.reason


@pytest.mark.parametrize(("type", "count"), [(ValueType.STRING, 4 << 30), (ValueType.BOOL, 30 << 30)])
def test_huge_header_does_not_block_the_list(folder, type, count):
    head = gguf_bytes([entry("x", ValueType.ARRAY, array(type, count))])
    with (folder / "huge.gguf").open("wb") as file:
        file.write(head)
        file.truncate(40 << 30)  # without a block on the disk
    start = time.monotonic()
    assert [info.name for info in ModelCatalog(folder).list()] == ["one", "two"]
    assert time.monotonic() - start < 60  # to read it would take minutes


def test_hub_model_is_listed_and_loaded_by_its_name(folder, app_with):
    place = folder / "hf" / "org" / "repo" / "x-Q4_0.gguf"
    place.parent.mkdir(parents=True)
    (folder / "one.gguf").rename(place)
    name = "hf:org/repo/x-Q4_0.gguf"
    with app_with(models_dir=folder) as api:
        assert [one["id"] for one in api.get("/v1/models").json()["data"]] == ["two", name]
        for typed in (name, "hf%3Aorg%2Frepo%2Fx-Q4_0.gguf", "x-Q4_0"):
            assert api.get(f"/api/v1/models/{typed}").json()["name"] == name
        assert api.post(f"/api/v1/models/{name}/load").json()["model_info"]["name"] == name
        assert api.post("/v1/completions", json={"model": name, "prompt": "a", "max_tokens": 1}).status_code == 200
        assert api.post(f"/api/v1/models/{name}/unload").json()["success"]


def test_invalid_utf_8_does_not_break_the_list(folder, app_with):
    keys = ("general.architecture", "general.author", "general.name")
    (folder / "odd.gguf").write_bytes(gguf_bytes([entry(key, ValueType.STRING, string(b"wool\xff")) for key in keys]))
    with app_with(models_dir=folder) as api:
        for route in ("/api/v1/models", "/v1/models", "/api/v1/models/odd"):
            assert api.get(route).status_code == 200, route
        assert api.get("/api/v1/models/odd").json()["description"] == "wool\ufffd"
