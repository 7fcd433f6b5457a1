"""Presets: the library takes them by the model's name, or by their own."""

import pytest

from tests.cases.tiny import TINY, write_tiny
from woolly import LLM, SamplingParams, StoreError
from woolly.store import is_model_name, resolve, write_derived

PRESETS = """
[tiny]
system = "Be terse."
ctx = 128
temperature = 0.0
max_tokens = 3
stop = ["x"]

[Pirate]
system = "Talk as a pirate."
"""
TEMPLATE = "{% for m in messages %}[{{ m.role }}: {{ m.content }}]{% endfor %}"


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setenv("WOOLLY_HOME", str(tmp_path / "home"))
    (tmp_path / "files").mkdir()
    return write_tiny(TINY["llama"], tmp_path / "files" / "tiny.gguf")


@pytest.fixture(params=["beside", "models", "home"])
def written(request, model, tmp_path):
    folder = {"beside": model.parent, "models": tmp_path / "home" / "models", "home": tmp_path / "home"}[request.param]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "presets.toml").write_text(PRESETS)
    return model


def opened(model, **options):
    return LLM(model, threads=1, chat_template=TEMPLATE, **options)


def asked(llm, *messages, **options):
    """Returns the prompt that a conversation becomes."""
    return llm.prepare_chat(list(messages), **options)[0].text


USER = {"role": "user", "content": "hi"}
SYSTEM = {"role": "system", "content": "Sing."}


def test_preset_of_a_model_name_fills_missing_options(written):
    with opened(written) as llm:
        assert llm.ctx == 128 and llm.preset.name == "tiny"
        assert len(llm.generate("a", ignore_eos=True).token_ids) == 3
        assert len(llm.generate("a", max_tokens=5, ignore_eos=True).token_ids) == 5
        assert llm.prepare("a")[0][0].params.stop == ("x",)
        assert llm.prepare("a", SamplingParams())[0][0].params == SamplingParams()
        assert asked(llm, USER) == "[system: Be terse.][user: hi]"
        assert asked(llm, SYSTEM, USER) == "[system: Sing.][user: hi]"
    with opened(written, ctx=64) as llm:
        assert llm.ctx == 64


def test_preset_is_chosen_by_name_or_disabled(written):
    with opened(written, preset="pirate") as llm:
        assert asked(llm, USER).startswith("[system: Talk as a pirate.]") and llm.ctx != 128
        assert llm.prepare("a")[0][0].params == SamplingParams()
    with opened(written, preset="none") as llm:
        assert llm.preset is None and asked(llm, USER) == "[user: hi]"
    with pytest.raises(StoreError, match="there is no preset named 'wizard'; known: tiny, pirate"):
        opened(written, preset="wizard")


def test_without_a_preset_file_nothing_changes(model):
    with opened(model) as llm:
        assert llm.preset is None and llm.defaults == SamplingParams()
    with pytest.raises(
        StoreError, match=r"no preset named .pirate.; write it as a table \[pirate\] of .*presets\.toml"
    ):
        opened(model, preset="pirate")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[tiny", "is not valid TOML"),
        ("system = 'a'", "system is outside of a table"),
        ("[tiny]\nctx = 'long'", "ctx of \\[tiny\\] is 'long'"),
        ("[tiny]\nsystem = 5", "system of \\[tiny\\] is 5"),
        ("[tiny]\ntemprature = 1", "temperature"),
        ("[tiny]\ntop_p = 7", "top_p is 7"),
    ],
)
def test_invalid_preset_file_is_rejected_by_name(model, text, says):
    (model.parent / "presets.toml").write_text(text)
    with pytest.raises(StoreError, match=says) as caught:
        opened(model)
    assert "presets.toml" in str(caught.value)


def test_derived_model_opens_with_its_preset(model, tmp_path, monkeypatch):
    folder = tmp_path / "home" / "models"
    folder.mkdir(parents=True)
    here = folder / "tiny.gguf"
    here.write_bytes(model.read_bytes())
    write_derived(folder, "pirate", "tiny", "Talk as a pirate.", {"max_tokens": 3})
    write_derived(folder, "loop", "pirate", None, {})
    assert is_model_name("pirate") and resolve("Pirate:latest") == here
    with opened("pirate") as llm:
        assert llm.preset.name == "pirate" and llm.preset.system == "Talk as a pirate."
        assert len(llm.generate("a", ignore_eos=True).token_ids) == 3
    with opened("pirate", preset="none") as llm:
        assert llm.preset is None
    with opened("tiny") as llm:
        assert llm.preset is None
    with pytest.raises(StoreError):
        resolve("loop")
    write_derived(folder, "tiny", "gone", None, {})
    assert resolve("tiny") == here  # a file of the name goes before it
