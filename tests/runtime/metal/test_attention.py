"""Attention as Metal's text has it, run as C++: bits of the cpu backend; barriers and memory are checked."""

from dataclasses import replace

import numpy as np
import pytest

from tests.cases.attention import _attention
from tests.cases.ops import Run, run
from tests.cases.tiny import TINY, write_tiny
from tests.runtime.metal.text import texts
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.quant import GGMLType
from woolly.runtime import Batch, Options, get_backend
from woolly.runtime.vulkan.ops import attention

# Two sequences in one tile, then rows that see two splits of positions.
TILED: tuple[Run, ...] = (((5, 0, (7,)), (119, 0, (1, 3, 4, 5, 6))), ((12, 119, (1, 3, 4, 5, 6)),))
MORE = {"softcap": 2.0, "sinks": True, "window": 100}
# A case for each kernel of tiles.
TILES = {
    **{f"attend_tile_plain_{kind}": (kind, {}) for kind in ("f32", "f16", "q8_0")},
    **{f"attend_tile_{kind}": (kind, MORE) for kind in ("f32", "f16", "q8_0", "q4")},
    "attend_tile_any": ("q8_0/q4", MORE),
}


def test_every_tile_kernel_has_a_case():
    assert set(TILES) == {name for name in texts() if name.startswith("attend_tile")}


@pytest.mark.parametrize("kernel", TILES)
def test_query_tiles_match_the_cpu_backend(kernel, metal, fake, tmp_path, monkeypatch):
    monkeypatch.setattr(attention, "_MIN_TILED_ROWS", 9)
    monkeypatch.setattr(attention, "_MIN_SEQUENCE_ROWS", 0)
    kv_type, more = TILES[kernel]
    case = _attention(kernel, 40, 2, "neox", kv_type, TILED, kv_heads=1, **more)
    with case.open(tmp_path) as file:
        plan, options = case.plan(file), Options(kv_type=kv_type, threads=1, max_rows=128)
        found, wanted = (run(case, one.compile(plan, file.tensors, options)) for one in (metal, get_backend("cpu")))
    np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32))
    assert {name for name in fake.launched if name.startswith("attend_tile")} == {kernel}


@pytest.mark.parametrize(("group", "kernel"), [(5, "attend_f16_128"), (8, "attend_parts_f16_128")])
def test_decode_rows_before_a_prompt_are_left_out_of_its_tiles(group, kernel, metal, fake, tmp_path, monkeypatch):
    """Tiles of 6 rows, which no kernel of few rows fits, and of 4; both begin within the prompt."""
    monkeypatch.setattr(attention, "_MIN_TILED_ROWS", 12)
    monkeypatch.setattr(attention, "_MIN_SEQUENCE_ROWS", 5)
    runs: tuple[Run, ...] = (((40, 0, (1, 2)),), ((1, 40, (1, 2)), (4, 0, (6,)), (21, 0, (7,))))
    case = _attention(f"front-{group}", 16, group, "neox", "f16", runs, kv_heads=1)
    with case.open(tmp_path) as file:
        plan, options = case.plan(file), Options(kv_type="f16", threads=1, max_rows=64)
        found, wanted = (run(case, one.compile(plan, file.tensors, options)) for one in (metal, get_backend("cpu")))
    np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32))
    names = [name for name in fake.launched if name.startswith("attend")]
    assert [name for name in names if "tile" in name] == ["attend_tile_plain_f16"] * 2
    assert next(name for name in names if "tile" not in name) == kernel


@pytest.mark.parametrize(("kv_type", "least"), [("q4", 9), ("q4", 256), ("q4/f16", 256)])
def test_4_bit_keys_without_bias_match_the_cpu_backend(kv_type, least, metal, fake, tmp_path, monkeypatch):
    monkeypatch.setattr(attention, "_MIN_TILED_ROWS", least)
    monkeypatch.setattr(attention, "_MIN_SEQUENCE_ROWS", 0)
    spec = replace(TINY["qwen2"], width=256, ffn=256, type=GGMLType.Q4_K, head_dim=64, n_layers=1)
    tokens = np.random.RandomState(7).randint(0, 264, 24)
    with open_gguf(write_tiny(spec, tmp_path / "tiny.gguf")) as file:
        plan, options = trace(file), Options(kv_type=kv_type, threads=1, max_rows=32)
        program, cpu = (one.compile(plan, file.tensors, options) for one in (metal, get_backend("cpu")))
        assert any(step.by_role("k_bias") for step in program.running_plan.steps)
        rows = []
        for one, chunks in ((program, (20, 1, 3)), (cpu, (24,))):
            state, first = one.new_state(4), 0
            for n in chunks:
                rows.append(one.run(Batch.of([(tokens[first : first + n], first, [2])], range(n)), state).copy())
                first += n
    np.testing.assert_array_equal(np.concatenate(rows[:3]).view(np.uint32), rows[3].view(np.uint32))
    name = "any" if "/" in kv_type else "q4"
    assert {"store_any", f"attend_parts_{name}_128", "attend_merge_any_128"} <= set(fake.launched)
    assert (f"attend_tile_{name}" in fake.launched) == (least == 9) != (f"attend_{name}_128" in fake.launched)
