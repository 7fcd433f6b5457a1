"""Vision models that differ from their family, and projectors of other models."""

from dataclasses import replace

import pytest

from tests.cases.families import FAMILIES
from tests.cases.hybrids import HYBRIDS
from tests.cases.tiny import TINY, write_tiny
from tests.cases.towers import TOWERS, write_tower
from tests.engine.test_vision import finish, input_image, prompt
from woolly.engine import Engine, load_model
from woolly.errors import ModelError, UnsupportedError
from woolly.runtime import Options


def test_qwen_3_5_has_a_vision_tower_without_deepstack_rows(tmp_path):
    whole = TOWERS["qwen3vl"]
    plain = replace(whole, name="qwen35", root={k: v for k, v in whole.root.items() if "deepstack" not in k})
    tower = write_tower(plain, tmp_path / "tower.gguf")
    loaded = load_model(
        write_tiny(HYBRIDS["qwen35"], tmp_path / "text.gguf"), "cpu", Options(threads=1), projector=tower
    )
    engine = Engine(loaded.program, loaded.tokenizer, tower=loaded.tower, ctx=512)
    answers = [finish(engine, prompt(engine, "See ", input_image("qwen3vl", seed), "what?"))[0] for seed in (0, 1, 0)]
    assert answers[0] == answers[2] != answers[1]
    loaded.close()


def test_projector_of_another_model_is_rejected(tmp_path):
    text = write_tiny(replace(TINY["llama"], width=96, name="wide"), tmp_path / "text.gguf")
    tower = write_tower(TOWERS["llava"], tmp_path / "tower.gguf")
    with pytest.raises(ModelError, match="rows of 64 numbers, but the llama model has 96"):
        load_model(text, "cpu", Options(threads=1), projector=tower)
    with pytest.raises(ModelError, match="not a projector file"):
        load_model(text, "cpu", Options(threads=1), projector=text)
    with pytest.raises(UnsupportedError, match="bloom models with ALiBi do not support images"):
        text = write_tiny(FAMILIES["bloom"], tmp_path / "n.gguf")
        load_model(text, "cpu", Options(threads=1), projector=tower)
