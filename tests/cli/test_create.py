"""Names with settings of their own: `create` from Ollama's Modelfile, `cp`, and `show --modelfile`."""

import pytest
from click.testing import CliRunner

from tests.cases.tiny import TINY, write_tiny
from tests.cli.terminal import woolly
from woolly.cli.app import app
from woolly.cli.parse.modelfile import read_modelfile, write_modelfile
from woolly.errors import StoreError
from woolly.llm import LLM
from woolly.store import find_derived_model, models_folder, resolve

TEXT = '''# a pirate
FROM own
parameter temperature 0
PARAMETER num_ctx 64
PARAMETER num_predict -1
PARAMETER stop "<|end|>"
PARAMETER stop two words
PARAMETER num_batch 512
SYSTEM """Answer as a pirate.
Be "brief"."""
LICENSE MIT
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("WOOLLY_HOME", str(tmp_path))
    models = models_folder()
    models.mkdir(parents=True)
    write_tiny(TINY["llama"], models / "own.gguf")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_modelfile_makes_a_name_with_settings(folder):
    (folder / "Modelfile").write_text(TEXT)
    result = CliRunner().invoke(app, ["create", "pirate"])
    assert (result.exit_code, result.stdout) == (0, "created pirate from own\n"), result.output
    assert result.stderr.splitlines() == [
        "woolly: PARAMETER num_batch of the Modelfile has no effect",
        "woolly: LICENSE of the Modelfile has no effect",
    ]
    made = find_derived_model("pirate:latest")
    assert (made.base, made.system, made.ctx) == ("own", 'Answer as a pirate.\nBe "brief".', 64)
    assert made.sampling == {"temperature": 0, "stop": ["<|end|>", "two words"]}
    with LLM("pirate") as llm:
        assert llm.ctx == 64


def test_shown_modelfile_makes_the_same_model_again(folder):
    (folder / "Modelfile").write_text(TEXT)
    woolly("create", "pirate", "-f", str(folder / "Modelfile"))
    shown = woolly("show", "--modelfile", "pirate")
    assert shown.splitlines()[:3] == ["FROM own", "PARAMETER num_ctx 64", "PARAMETER temperature 0"]
    (folder / "again").write_text(shown)
    woolly("create", "parrot", "-f", "again")
    one, other = find_derived_model("pirate"), find_derived_model("parrot")
    assert (one.base, one.system, one.ctx, one.sampling) == (other.base, other.system, other.ctx, other.sampling)
    assert woolly("show", "own", "--modelfile") == "FROM own\n"


def test_cp_gives_another_name_with_the_same_settings(folder):
    (folder / "Modelfile").write_text(TEXT)
    woolly("create", "pirate")
    assert woolly("cp", "pirate", "mate") == "mate is another name for own\n"
    assert find_derived_model("mate").system == find_derived_model("pirate").system
    assert woolly("cp", "own", "plain:v1") == "plain:v1 is another name for own\n"
    assert resolve("plain:v1") == resolve("own")
    assert woolly("rm", "mate", "plain:v1") == "removed the name mate\nremoved the name plain:v1\n"
    assert find_derived_model("mate") is None and resolve("own").is_file()


def test_file_and_adapter_of_a_modelfile_are_relative_to_it(folder):
    (folder / "sub").mkdir()
    (folder / "sub" / "x.gguf").write_bytes((models_folder() / "own.gguf").read_bytes())
    (folder / "sub" / "lora.gguf").write_bytes(b"GGUF")
    found = read_modelfile("FROM ./x.gguf\nADAPTER lora.gguf", folder / "sub")
    assert found.base == str(folder / "sub" / "x.gguf")
    assert found.settings == {"lora": [str(folder / "sub" / "lora.gguf")]}


def test_path_of_a_model_is_stored_for_every_folder(folder, monkeypatch):
    (folder / "m.gguf").write_bytes((models_folder() / "own.gguf").read_bytes())
    (folder / "link.gguf").symlink_to("m.gguf")
    for number, base in enumerate(("m.gguf", "./m.gguf", "link.gguf", str(folder / "m.gguf"))):
        woolly("cp", base, f"outside{number}")
        assert find_derived_model(f"outside{number}").base == str((folder / "m.gguf").resolve())
    monkeypatch.chdir(models_folder())
    for base in ("own.gguf", str(models_folder() / "own.gguf")):
        assert woolly("cp", base, "inside") == "inside is another name for own\n"
    assert resolve("outside1") == (folder / "m.gguf").resolve()


def test_new_tag_of_a_catalogue_family_is_free(folder):
    assert woolly("cp", "own", "qwen3:mine") == "qwen3:mine is another name for own\n"
    assert resolve("qwen3:mine") == resolve("own")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "FROM own\nTEMPLATE {{ .Prompt }}",
            "line 2 of the Modelfile: TEMPLATE is not supported: Ollama's Go",
        ),
        ("FROM own\nMESSAGE user Hi", "line 2 of the Modelfile: MESSAGE is not supported: a derived model has no"),
        ("FROM own\nPARAMETER temprature 1", "the parameter 'temprature' is not supported; did you mean temperature"),
        ("FROM own\nPARAMETER tfs_z 0.5", "the parameter 'tfs_z' is not supported; supported are num_predict"),
        ("FROM own\nPARAMETER temperature hot", "line 2 of the Modelfile: temperature is 'hot'; expected a number"),
        ("FROM own\nPARAMETER temperature 1e400", "line 2 of the Modelfile: temperature is 1e400, which is too large"),
        ("FROM own\nPARAMETER top_k -1e999", "line 2 of the Modelfile: top_k is -1e999, which is too large"),
        ("FORM own", "line 1 of the Modelfile begins with 'FORM'; did you mean FROM"),
        ("SYSTEM Hi", "the Modelfile has no line FROM, which names the base model"),
        ('FROM own\nSYSTEM """open', 'line 2 of the Modelfile opens """, which is not closed'),
        ("FROM ./none.gguf", "the Modelfile names ./none.gguf, which does not exist"),
    ],
)
def test_unsupported_lines_are_rejected_by_name(tmp_path, text, says):
    with pytest.raises(StoreError) as caught:
        read_modelfile(text, tmp_path)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("create", "pirate"), "the Modelfile Modelfile cannot be read"),
        (("cp", "own", "own"), "'own' is the name of the model file"),
        (("cp", "own", "smollm2"), "'smollm2' is a name of the catalogue, for `woolly pull smollm2`; choose another"),
        (("cp", "own", "SmolLM2:135m"), "'SmolLM2:135m' is a name of the catalogue"),
        (("cp", "own", "qwen3:4b"), "'qwen3:4b' is a name of the catalogue"),
        (("cp", "own", "a b"), "'a b' is not a name for a model"),
        (("cp", "none", "other"), "there is no file or model named 'none'"),
    ],
)
def test_invalid_names_are_rejected(folder, words, says):
    with pytest.raises(StoreError) as caught:
        woolly(*words)
    assert says in str(caught.value)


def test_written_modelfile_is_read_back(tmp_path):
    settings = {"temperature": 0.5, "max_tokens": 9, "stop": ["a b", "\n"], "gpu_layers": 3}
    found = read_modelfile(write_modelfile("own", "Two\nlines", settings), tmp_path)
    assert (found.base, found.system, found.settings) == ("own", "Two\nlines", settings)
