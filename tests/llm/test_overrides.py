"""Metadata that are given when a model is opened stand in place of the file's, and nothing else changes."""

from dataclasses import replace

import numpy as np
import pytest

from tests.cases.tiny import TINY, write_tiny
from woolly import LLM, RequestError
from woolly.gguf.overlay import parse_overrides, write_overrides

YARN = {
    "llama.rope.scaling.type": "yarn",
    "llama.rope.scaling.factor": 4.0,
    "llama.rope.scaling.original_context_length": 64,
}
IDS = [(i * 7 + 3) % 200 for i in range(60)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("overrides")
    plain = replace(TINY["llama"], context=64)
    write_tiny(plain, folder / "plain.gguf")
    write_tiny(
        replace(plain, extra={key.removeprefix("llama."): value for key, value in YARN.items()}), folder / "yarn.gguf"
    )
    return folder


def opened(path, **options):
    return LLM(path, threads=1, ctx=64, **options)


def test_override_acts_like_file_metadata(folder):
    with opened(folder / "yarn.gguf") as wanted, opened(folder / "plain.gguf", metadata=YARN) as given:
        assert given.plan.steps == wanted.plan.steps
        np.testing.assert_array_equal(given.logits(IDS), wanted.logits(IDS))


def test_flags_are_names_for_keys(folder):
    flags = {"rope_scaling": "yarn", "rope_scale": 4, "yarn_orig_ctx": 64}
    with opened(folder / "plain.gguf", **flags) as flagged, opened(folder / "plain.gguf", metadata=YARN) as given:
        assert flagged.plan == given.plan
    with opened(folder / "plain.gguf", rope_freq_base=500) as llm, opened(folder / "plain.gguf") as plain:
        assert llm.plan != plain.plan


def test_overrides_are_part_of_the_identity(folder):
    with opened(folder / "plain.gguf", metadata=YARN) as given, opened(folder / "plain.gguf") as plain:
        assert given.identity().model != plain.identity().model
        assert given.identity().id != plain.identity().id


def test_rope_scaled_model_takes_more_positions_without_a_warning(folder, recwarn):
    with LLM(folder / "plain.gguf", threads=1, ctx=250, rope_scaling="yarn", rope_scale=4) as llm:
        assert llm.ctx == 250
    assert not [one for one in recwarn if "context" in str(one.message)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"metadata": {"llama.rope.freq_bose": 1.0}}, "this model does not use"),
        ({"metadata": {"llama.rope.freq_base": "high"}}, "in the file it is float"),
        ({"metadata": {"tokenizer.ggml.tokens": "a"}}, "in the file it is an array"),
        ({"metadata": ["llama.rope.freq_base:5"]}, "expected KEY=TYPE:VALUE"),
        ({"metadata": ["llama.rope.freq_base=float:x"]}, "which is not a float"),
        ({"metadata": ["a=bool:maybe"]}, "which is not a bool"),
        ({"metadata": {"a": [1]}}, "a number, a bool or a string"),
        ({"rope_scaling": "ntk"}, "choose one of: none, linear, yarn"),
        ({"rope_scale": 0}, "expected a number above 0"),
        ({"rope_scaling": "none", "rope_scale": 2}, "no effect with rope_scaling 'none'"),
        ({"metadata": {"llama.block_count": 9}}, "blk"),
    ],
)
def test_nonsensical_overrides_are_rejected(folder, options, says):
    with pytest.raises(Exception, match=says) as caught:
        opened(folder / "plain.gguf", **options)
    assert isinstance(caught.value, RequestError) or "blk" in says


def test_override_text_round_trips():
    given = {"a.b": 1, "a.c": 2.5, "a.d": True, "a.e": "yarn"}
    assert parse_overrides(write_overrides(given)) == given
    assert parse_overrides("a.b=int:1,a.c=float:2.5 , a.d=bool:true,a.e=str:yarn") == given
    assert parse_overrides(None) == parse_overrides("") == {}
