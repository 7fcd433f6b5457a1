"""Images, audio and prompts with them on a device of Vulkan: the bits of the cpu backend."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.cases.audio_towers import AUDIO_TOWERS, prepared_audio, write_audio_tower
from tests.cases.tiny import write_tiny
from tests.cases.towers import TOWERS, encoder_input, write_tower
from tests.engine.test_vision import GREEDY, PAIRS, finish, input_image, prompt
from woolly.engine import Engine, load_model
from woolly.engine.multimodal import open_tower
from woolly.errors import UnsupportedError
from woolly.gguf import MemoryMap, Tensor
from woolly.plan import Tracer
from woolly.quant import GGMLType
from woolly.runtime import BACKENDS, Batch, Options
from woolly.runtime.gpu.multimodal_checks import MultimodalChecks

# The others fill 30 seconds, which the CPU in place of a GPU takes minutes for, or have the ops of these.
SHORT_AUDIO_TOWERS = ("ultravox", "granite_speech", "gemma4a", "gemma4ua", "gemma3na", "lfm2a")
LEFT_TO_THE_CPU = {"gemma3na": "cumulative_norm"}  # and the op that has no kernel
# 4 x 4 rows in place of 16 x 16: each pixel of the first takes a product.
FEWER = replace(
    TOWERS["gemma3n"], grids=((1, 4, 4),), patch=16, extra=TOWERS["gemma3n"].extra | {"vision.image_size": 64}
)


def give_room(monkeypatch):
    """The CPU in place of a GPU has little memory: batches of few rows take less of it, and less time."""
    monkeypatch.setattr("woolly.engine.multimodal.tower._GPU_SHARE", 1.0)
    monkeypatch.setattr("woolly.engine.multimodal.tower._GPU_ROWS", 256)


# Rows that see each other, beside windows; the same in some layers alone; lines and columns, and rows that are added in
# later layers; those of matrices of their own.
@pytest.mark.parametrize("name", ["gemma3", "gemma4", "qwen3vl", "cogvlm"])
def test_prompt_with_images_matches_the_cpu_backend(name, vulkan, tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(BACKENDS, "vulkan", lambda: vulkan)
    give_room(monkeypatch)
    text = write_tiny(PAIRS[name], tmp_path / "text.gguf")
    tower = write_tower(TOWERS[name], tmp_path / "tower.gguf")
    answers = {}
    for backend in ("cpu", "vulkan"):
        loaded = load_model(text, backend, Options(kv_type="f16", threads=1), projector=tower)
        assert loaded.program.about.backend == backend and loaded.tower.bits == "cpu"
        assert {one.about.backend for one in loaded.tower.programs} == {backend}
        engine = Engine(loaded.program, loaded.tokenizer, tower=loaded.tower, ctx=512, kv_tokens=2048)
        asked = [
            prompt(engine, "a sheep ", input_image(name), "What?"),
            prompt(engine, "See ", input_image(name, 1), "and ", input_image(name, 2), "?"),
            prompt(engine, "No image."),
        ]
        answers[backend] = finish(engine, *asked, params=replace(GREEDY, max_tokens=3))
        loaded.close()
    assert answers["vulkan"] == answers["cpu"]
    assert "runs on the CPU" not in caplog.text


@pytest.mark.parametrize("name", [*TOWERS, *SHORT_AUDIO_TOWERS])
def test_tower_rows_match_the_cpu_backend(name, vulkan, tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(BACKENDS, "vulkan", lambda: vulkan)
    give_room(monkeypatch)
    monkeypatch.setattr("woolly.multimodal.families.gemma3nv._SIDE", 4)
    path = tmp_path / "tower.gguf"
    if name in SHORT_AUDIO_TOWERS:
        write_audio_tower(AUDIO_TOWERS[name], path)
        one = prepared_audio(AUDIO_TOWERS[name], 4000).inputs[0]
    else:
        tower = FEWER if name == "gemma3n" else TOWERS[name]
        write_tower(tower, path)
        one = encoder_input(min(tower.grids, key=math.prod), patch=tower.patch)
    towers = [open_tower(path, backend, Options(threads=1)) for backend in ("vulkan", "cpu")]
    rows = [tower.rows(one).copy() for tower in towers]
    np.testing.assert_array_equal(rows[0].view(np.uint32), rows[1].view(np.uint32))
    assert towers[0].bits == "cpu" and towers[0].identity == towers[1].identity
    found = {program.about.backend for program in towers[0].programs}
    for tower in towers:
        tower.close()
    if name in LEFT_TO_THE_CPU:
        assert found == {"cpu"}
        assert f"the vulkan backend has no kernel for {LEFT_TO_THE_CPU[name]} yet" in caplog.text
    else:
        assert found == {"vulkan"} and "runs on the CPU" not in caplog.text


def test_tower_on_metal_runs_on_the_cpu(tmp_path, caplog):
    tower = open_tower(write_tower(TOWERS["gemma3"], tmp_path / "tower.gguf"), "metal", Options(threads=1))
    assert {program.about.backend for program in tower.programs} == {"cpu"}
    said = "the encoder of tower.gguf runs on the CPU: the metal backend does not support encoders yet"
    assert caplog.text.count(said) == 1
    tower.close()


def test_tower_with_more_rows_than_a_grid_is_rejected_by_name(vulkan):
    tracer = Tracer("case", {})
    tracer.output(tracer.input(width=8))
    with pytest.raises(UnsupportedError, match="have no towers of 65536 rows at once: 65535 at most"):
        vulkan.compile(tracer.plan(), {}, Options(max_rows=65536))


def test_filter_rows_are_checked_before_a_gpu_reads_them():
    """With what rows see, which no step reads here."""
    tensor = Tensor("f.weight", GGMLType.F32, (8, 2), 0, MemoryMap("f", np.ones((8, 2), np.float32)))
    tracer = Tracer("case", {"f.weight": tensor})
    tracer.output(tracer.output_rows(tracer.gather_conv1d(tracer.input(width=8), "f", first=1, taps=2)))
    needs = MultimodalChecks(tracer.plan(), is_supported=True)
    batch = Batch.of([([0] * 2, 0, [0]), ([0] * 3, 0, [1])], range(5))
    gather_rows = np.array([[9, 0, -1], [9, 1, 0], [9, 2, 1], [9, 0, 2], [9, -1, -1]], np.int32)
    batch = replace(
        batch,
        gather_rows=gather_rows,
        gather_weights=np.ones((5, 3), np.float32),
        attn_ranges=np.zeros((5, 2), np.int32),
    )
    needs.check(batch)
    for wrong, message in (
        (None, "does not name the rows of a filter"),
        (gather_rows[:, :2], "does not name the rows of a filter"),
        (gather_rows - 1, "reads a row outside its text"),
        (np.where(gather_rows == 0, 2, gather_rows), "reads a row outside its text"),
    ):
        with pytest.raises(ValueError, match=message):
            needs.check(replace(batch, gather_rows=wrong))
