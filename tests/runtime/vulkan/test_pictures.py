"""Prompts with pictures on a device of Vulkan, whose towers the CPU runs: the bits of the cpu backend."""

from dataclasses import replace

import pytest

from tests.cases.tiny import write_tiny
from tests.cases.towers import TOWERS, write_tower
from tests.engine.test_seeing import GREEDY, PAIRS, finish, prompt, seen
from woolly.engine import Engine, load_model
from woolly.runtime import BACKENDS, Options


# Rows that see each other, beside windows; the same in some layers alone; lines and columns, and rows that are added in
# later layers.
@pytest.mark.parametrize("name", ["gemma3", "gemma4", "qwen3vl"])
def test_a_prompt_with_pictures_has_the_bits_of_the_cpu_backend(name, vulkan, tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(BACKENDS, "vulkan", lambda: vulkan)
    text = write_tiny(PAIRS[name], tmp_path / "text.gguf")
    tower = write_tower(TOWERS[name], tmp_path / "tower.gguf")
    answers = {}
    for backend in ("cpu", "vulkan"):
        loaded = load_model(text, backend, Options(kv_type="f16", threads=1), projector=tower)
        assert loaded.program.about.backend == backend and loaded.tower.bits == "cpu"
        engine = Engine(loaded.program, loaded.tokenizer, tower=loaded.tower, ctx=512, kv_tokens=2048)
        asked = [
            prompt(engine, "a sheep ", seen(name), "What?"),
            prompt(engine, "See ", seen(name, 1), "and ", seen(name, 2), "?"),
            prompt(engine, "No picture."),
        ]
        answers[backend] = finish(engine, *asked, params=replace(GREEDY, max_tokens=3))
        loaded.close()
    assert answers["vulkan"] == answers["cpu"]
    line = "the tower of tower.gguf runs on the CPU: the vulkan backend has no towers yet"
    assert caplog.text.count(line) == 1
