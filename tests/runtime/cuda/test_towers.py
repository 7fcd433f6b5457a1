"""Towers on the emulated GPU: rows of images and audio against the reference, and prompts with such rows."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.cases.tiny import write_tiny
from tests.cases.towers import TOWERS, encoder_input, write_tower
from tests.engine.test_vision import GREEDY, PAIRS, finish, input_image, prompt
from tests.runtime.cuda.emulated import EmulatedDevice
from tests.runtime.cuda.towers import check
from woolly.engine import Engine, load_model
from woolly.engine.multimodal import open_tower, tower_backend, tower_bytes
from woolly.engine.multimodal import tower as module
from woolly.gguf import open_gguf
from woolly.multimodal.encoder import trace_towers
from woolly.plan.passes import fuse
from woolly.runtime import BACKENDS, Batch, Options
from woolly.runtime.cuda import CudaBackend
from woolly.runtime.gpu import graph_runner
from woolly.runtime.gpu.gpu_info import Gpu
from woolly.runtime.gpu.multimodal_checks import MultimodalChecks


@pytest.fixture
def emulated(monkeypatch):
    """The emulated GPU is that of the machine."""
    monkeypatch.setitem(BACKENDS, "cuda", lambda: CudaBackend(EmulatedDevice, lambda: "sm_80"))
    monkeypatch.setattr(module, "find_gpu", lambda *_: Gpu(0, "emulated", "sm_80", 8 << 30, 8 << 30, None))


# Windows, and lines and columns; bounds, a table for each axis and means; queries that see all; rows around each, and
# distances of rows; norms by the rows before; rows without an encoder; layer scale and
# filters of lines and columns.
@pytest.mark.parametrize(
    "name",
    [
        "qwen2.5vl",
        "gemma4",
        "minicpmv",
        "exaone4.5",
        "minimax-m3",
        "phi4",
        "youtuvl",
        "granite_speech",
        "gemma3na",
        "gemma4-12b",
        "gemma4ua",
        "kimik25",
        "step3vl",
        "nemotron_v2_vl",
        "granite4_vision",
        "deepseekocr2",
    ],
)
def test_rows_match_the_reference_wherever_the_work_stops(name, emulated, tmp_path):
    check(name, tmp_path)


def test_images_of_a_known_size_run_as_a_graph(emulated, tmp_path, monkeypatch):
    monkeypatch.setattr(graph_runner, "_MAX_GRAPH_ROWS", 2)
    captured, capture = [], EmulatedDevice.capture
    monkeypatch.setattr(EmulatedDevice, "capture", lambda *own: captured.append(own) or capture(*own))
    tower = open_tower(write_tower(TOWERS["gemma3"], tmp_path / "tower.gguf"), "cuda", Options())
    one = encoder_input(min(TOWERS["gemma3"].grids, key=math.prod))
    rows, n_captured = [], []
    for _ in range(3):
        rows.append(tower.rows(one))
        n_captured.append(len(captured))
    assert n_captured == [0, 1, 1]
    for again in rows[1:]:
        np.testing.assert_array_equal(again, rows[0])
    tower.close()


# Rows that see each other, beside windows; lines and columns, and rows that are added in later layers.
@pytest.mark.parametrize("name", ["gemma3", "qwen3vl"])
def test_prompt_with_an_image_has_one_answer(name, emulated, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_GPU_SHARE", 0.0)  # the tower is on the CPU, which is faster than an emulated GPU
    text = write_tiny(PAIRS[name], tmp_path / "text.gguf")
    tower = write_tower(TOWERS[name], tmp_path / "tower.gguf")
    answers = {}
    for backend in ("auto", "reference"):
        loaded = load_model(text, backend, Options(kv_type="f32"), projector=tower)

        def answer(*others, one=loaded, **options):
            engine = Engine(one.program, one.tokenizer, tower=one.tower, ctx=512, kv_tokens=2048, **options)
            asked = [
                prompt(engine, "a sheep ", input_image(name), "What?"),
                *(prompt(engine, other) for other in others),
            ]
            return finish(engine, *asked, params=replace(GREEDY, max_tokens=2))[0]

        answers[backend] = answer()
        if backend == "auto":
            assert loaded.program.about.backend == "cuda"
            if name == "qwen3vl":
                assert answer("Another text. ", chunk=64) == answers[backend]  # to the bit
        loaded.close()
    (tokens, logprobs), (exact, wanted) = answers["auto"], answers["reference"]
    assert tokens == exact
    got, want = ([one.logprob for one in all] for all in (logprobs, wanted))
    np.testing.assert_allclose(got, want, atol=2e-2)


def test_tower_without_gpu_memory_runs_on_the_cpu(emulated, tmp_path, monkeypatch, caplog):
    path = write_tower(TOWERS["gemma3"], tmp_path / "tower.gguf")
    assert tower_backend(path) == "cuda"
    of_an_image, needed = tower_bytes(path), tower_bytes(path, module._GPU_ROWS)
    assert needed > 4 * of_an_image  # of 64 rows, and programs have room for 4096
    monkeypatch.setattr(module, "_GPU_SHARE", needed / 2 / (8 << 30))
    tower = open_tower(path, "auto", Options(threads=1))
    assert tower.bits == "cpu" == tower_backend(path)
    assert "the encoder of tower.gguf runs on the CPU: it needs 0.0 GB, more than a quarter of the 8." in caplog.text
    tower.close()


@pytest.fixture(scope="module")
def needs(tmp_path_factory):
    """Multimodal checks of a tower with windows, and a batch that passes them."""
    path = write_tower(TOWERS["qwen2.5vl"], tmp_path_factory.mktemp("needs") / "tower.gguf")
    with open_gguf(path) as file:
        (traced,) = trace_towers(file)
    (layout,) = traced.patch_layout((1, 4, 4))
    batch = Batch.of([([0] * 16, 0, [0])], layout.outputs.tolist())
    return MultimodalChecks(fuse(traced.stages[0].plan), is_supported=True), replace(
        batch, attn_ranges=layout.attn_ranges
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attn_ranges": None}, "does not say what rows see"),
        ({"attn_ranges": np.zeros((3, 2), np.int32)}, "does not fit the batch"),
        ({"attn_ranges": np.array([[0, 17]] * 16, np.int32)}, "positions that do not fit"),
        ({"attn_ranges": np.array([[4, 8]] + [[0, 8]] * 15, np.int32)}, "positions that do not fit"),
        ({"rope_positions": np.zeros((2, 3), np.int32)}, "rope positions do not fit"),
        ({"output_rows": np.array([13], np.int32)}, "folded beyond the batch"),
        ({"inputs_embeds": np.zeros((1, 4), np.float32)}, "another number of embeddings"),
        (
            {"inputs_embeds": np.zeros((1, 4), np.float32), "embeds_rows": np.array([16], np.int32)},
            "outside the batch",
        ),
    ],
)
def test_batch_that_would_read_out_of_bounds_is_rejected(changes, message, needs):
    plan_needs, batch = needs
    plan_needs.check(batch)
    with pytest.raises(ValueError, match=message):
        plan_needs.check(replace(batch, **changes))
