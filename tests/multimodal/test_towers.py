"""Rows of towers agree with transformers, and their bits depend on nothing but the image."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.cases.audio_towers import AUDIO_TOWERS, prepared_audio, write_audio_tower
from tests.cases.numpy_sam import deepseek_ocr_2
from tests.cases.numpy_towers import NUMPY_TOWERS
from tests.cases.towers import PATCH, SIDE, TOWERS, encoder_input, tensors, write_tower
from woolly.engine.multimodal import open_tower, tower_bytes
from woolly.engine.multimodal.encoder_cost import row_work
from woolly.errors import ModelError, RequestError
from woolly.gguf import open_gguf
from woolly.multimodal import vision_families
from woolly.multimodal.encoder import trace_towers
from woolly.quant import GGMLType
from woolly.runtime import CancelledRun, Options
from woolly.runtime.reference.ops import REFERENCE_OPS

GOLDENS = Path(__file__).parent.parent / "goldens"


def wanted_rows(name):
    """Rows of transformers from a golden, or of NumPy."""
    by_numpy = NUMPY_TOWERS | {"deepseekocr2": deepseek_ocr_2}
    if name not in by_numpy:
        golden = np.load(GOLDENS / f"tower-{name}.npz")
        return [golden[key] for key in golden.files]
    tower = TOWERS[name]
    weights = {key: array.astype(np.float64) for key, array in tensors(tower).items()}
    return [by_numpy[name](weights, grid, encoder_input(grid, patch=tower.patch).values) for grid in tower.grids]


@pytest.mark.parametrize("name", TOWERS)
def test_tower_matches_transformers(name, tmp_path):
    tower = TOWERS[name]
    path = write_tower(tower, tmp_path / "tower.gguf")
    opened = {
        "reference": open_tower(path, "reference", Options()),
        "cpu": open_tower(path, "cpu", Options(threads=1)),
        "cpu of 3 threads": open_tower(path, "cpu", Options(threads=3)),
    }
    for grid, want in zip(tower.grids, wanted_rows(name), strict=True):
        got = {which: one.rows(encoder_input(grid, patch=tower.patch)) for which, one in opened.items()}
        for which, rows in got.items():
            assert rows.shape == want.shape
            error = np.linalg.norm(rows - want, axis=1) / np.linalg.norm(want, axis=1)
            assert error.max() < 1e-5 if which == "reference" else error.max() < 1e-4, (which, error.max())
        np.testing.assert_array_equal(got["cpu"], got["cpu of 3 threads"])
    for one in opened.values():
        one.close()


def test_every_family_has_a_golden_and_a_layout():
    assert {tower.projector for tower in TOWERS.values()} == set(vision_families())


def test_rows_do_not_depend_on_where_the_work_stops(tmp_path):
    tower = TOWERS["qwen2.5vl"]
    one = open_tower(write_tower(tower, tmp_path / "tower.gguf"), "cpu", Options(threads=2))
    inputs = [encoder_input(grid, seed) for seed, grid in enumerate(tower.grids)]
    want = [one.rows(each) for each in inputs]
    for each, rows in zip(reversed(inputs), reversed(want), strict=True):
        run, n_stops = one.start_run(each), 0
        while (got := run.advance(0)) is None:
            n_stops += 1
        assert n_stops > 10
        np.testing.assert_array_equal(got, rows)
    one.close()


@pytest.mark.parametrize("name", ["qwen2.5vl", "gemma4"])
def test_long_steps_are_split_by_rows_with_the_same_bits(name, tmp_path):
    one = open_tower(write_tower(TOWERS[name], tmp_path / "tower.gguf"), "cpu", Options(threads=2))
    large = encoder_input((1, 12, 12) if name == "gemma4" else (1, 20, 16))
    want, n_rows = one.rows(large), len(large.values)
    cut, run_part = [], one.programs[0].run_part

    def spied(batch, state, step, first, last):
        cut.append((one.programs[0].running_plan.steps[step].op, first, last))
        return run_part(batch, state, step, first, last)

    one.programs[0].run_part = spied
    run, n_slices = one.start_run(large), 0
    while (got := run.advance(0)) is None:
        n_slices += 1
    np.testing.assert_array_equal(got, want)
    assert {op for op, _, _ in cut} == {"attend", "linears"}
    assert max(last - first for _, first, last in cut) == 128 and max(last for _, _, last in cut) == n_rows
    assert n_slices > len(one.programs[0].running_plan.steps)
    one.close()


def finish(run):
    while (rows := run.advance(1e15)) is None:
        pass
    return rows


# Windows, with steps that are cut; stages, one of them in several batches.
@pytest.mark.parametrize("name", ["qwen2.5vl", "qwen3a"])
def test_rows_are_the_same_after_a_run_cancelled_between_steps(name, tmp_path, monkeypatch):
    monkeypatch.setattr("woolly.multimodal.encoder.tracing._MAX_ROWS", 77)
    path = tmp_path / "tower.gguf"
    if name in AUDIO_TOWERS:
        (seen, *_), _ = prepared_audio(AUDIO_TOWERS[name], 4000).inputs, write_audio_tower(AUDIO_TOWERS[name], path)
    else:
        seen, _ = encoder_input((1, 16, 12)), write_tower(TOWERS[name], path)
    one = open_tower(path, "cpu", Options(threads=1))
    want, run, n_stops = one.rows(seen), one.start_run(seen), 0
    while run.advance(0) is None:
        n_stops += 1

    def cancelled(plain):
        def run(*given):
            plain(*given)
            raise CancelledRun("the computation was cancelled")

        return run

    for n in range(1, n_stops, n_stops // 6):
        run = one.start_run(seen)
        for _ in range(n):
            run.advance(0)
        with monkeypatch.context() as patched:
            for program in one.programs:
                patched.setattr(program, "run", cancelled(program.run))
                patched.setattr(program, "run_part", cancelled(program.run_part))
            assert run.advance(1e15) is None
        np.testing.assert_array_equal(finish(run), want)
    one.close()


def test_rows_are_the_same_after_a_run_cancelled_within_a_step(tmp_path, monkeypatch):
    one = open_tower(write_tower(TOWERS["qwen2.5vl"], tmp_path / "tower.gguf"), "reference", Options())
    want, run = one.rows(encoder_input((1, 4, 4))), one.start_run(encoder_input((1, 4, 4)))
    for _ in range(3):
        run.advance(0)
    plain = REFERENCE_OPS["attention"]
    with monkeypatch.context() as patched:
        patched.setitem(REFERENCE_OPS, "attention", lambda *given: one.cancel() or plain(*given))
        assert run.advance(1e15) is None
    np.testing.assert_array_equal(finish(run), want)
    one.close()


def test_work_is_measured_in_flops(tmp_path):
    one = open_tower(write_tower(TOWERS["qwen2vl"], tmp_path / "tower.gguf"), "cpu", Options(threads=1))
    plan, run = one.programs[0].running_plan, one.start_run(encoder_input((1, 20, 16)))
    by_op = {}
    for step, work in zip(plan.steps, row_work(plan, 320), strict=True):
        by_op.setdefault(step.op, []).append(work)
    assert max(by_op["attend"]) >= 320 * 2 * 32  # rows that it sees, products and sums of 32 columns each
    assert max(by_op["linears"]) >= 32 * 3 * 32
    n_slices = 1
    while run.advance(3_000_000) is None:
        n_slices += 1
    assert 1 < n_slices < len(plan.steps)  # several small steps in one slice
    one.close()


def test_partial_rows_are_rejected_for_steps_that_compute_all(tmp_path):
    one = open_tower(write_tower(TOWERS["gemma3"], tmp_path / "tower.gguf"), "cpu", Options(threads=1))
    run = one.start_run(encoder_input((1, 8, 8)))
    run.advance(0)
    state = run._stages[0].state(64)
    first, attend = (
        next(i for i, step in enumerate(one.programs[0].running_plan.steps) if step.op == op)
        for op in ("input", "attend")
    )
    for step, rows in ((first, (0, 8)), (attend, (0, 65)), (attend, (8, 8)), (attend, (-1, 4))):
        with pytest.raises(ValueError, match="rows"):
            one.programs[0].run_part(run._batch, state, step, *rows)
    one.close()


def test_tower_memory_follows_from_its_header(tmp_path):
    small = replace(TOWERS["qwen2vl"], extra={"vision.image_max_pixels": 16 * 100})
    large = replace(TOWERS["qwen2vl"], extra={"vision.image_max_pixels": 16 * 4000})
    sizes = [tower_bytes(write_tower(one, tmp_path / f"{i}.gguf")) for i, one in enumerate((small, large))]
    weights = sum(array.nbytes for array in tensors(small).values())
    assert weights < sizes[0] < sizes[1]
    patches = 4000 * 48 * 4
    assert sizes[1] - sizes[0] > 2 * patches
    opened = open_tower(tmp_path / "1.gguf", "cpu", Options(threads=1))
    assert sizes[1] > opened.programs[0].about.arena_bytes + weights
    opened.close()
    assert tower_bytes(tmp_path / "none.gguf") == 0
    fixed = open_tower(write_tower(TOWERS["gemma3"], tmp_path / "fixed.gguf"), "cpu", Options(threads=1))
    assert fixed.programs[0].max_rows == 8 * 8 + 1  # one size of images needs no room for larger ones
    fixed.close()


def test_quantized_towers_run(tmp_path):
    tower = replace(TOWERS["gemma3"], type=GGMLType.Q8_0, ffn=64)
    exact = open_tower(write_tower(replace(tower, type=GGMLType.F32), tmp_path / "exact.gguf"), "cpu", Options())
    small = open_tower(write_tower(tower, tmp_path / "small.gguf"), "cpu", Options())
    want, got = (one.rows(encoder_input(tower.grids[0])) for one in (exact, small))
    assert np.linalg.norm(got - want) < 0.05 * np.linalg.norm(want)


def test_old_files_with_swapped_names_are_read(tmp_path):
    """Converters of llava wrote swapped names: the matrix that widens is called down."""
    tower = TOWERS["llava"]
    plain = open_tower(write_tower(tower, tmp_path / "plain.gguf"), "cpu", Options())
    swapped = {}
    for name, array in tensors(tower).items():
        other = name.replace("ffn_up", "?").replace("ffn_down", "ffn_up").replace("?", "ffn_down")
        swapped[other] = array
    path = rewritten(tower, swapped, tmp_path / "swapped.gguf")
    one = open_tower(path, "cpu", Options())
    np.testing.assert_array_equal(one.rows(encoder_input(tower.grids[0])), plain.rows(encoder_input(tower.grids[0])))


def rewritten(tower, arrays, path):
    """The file of a tower with other tensors."""
    from woolly.gguf import GGUFWriter

    with open_gguf(write_tower(tower, path.with_suffix(".whole"))) as file:
        writer = GGUFWriter(path)
        for key, value in file.metadata.items():
            writer.add(key, value)
        for name, array in arrays.items():
            writer.add_tensor(name, array, GGMLType.F32)
        writer.write()
    return path


def test_unused_tensor_is_rejected(tmp_path):
    tower = TOWERS["idefics3"]
    arrays = tensors(tower) | {"v.blk.0.surprise.weight": np.zeros(3, np.float32)}
    with (
        open_gguf(rewritten(tower, arrays, tmp_path / "odd.gguf")) as file,
        pytest.raises(ModelError, match=r"odd.gguf: .*v.blk.0.surprise.weight"),
    ):
        trace_towers(file)


def test_missing_tensor_is_named(tmp_path):
    tower = TOWERS["qwen2vl"]
    arrays = tensors(tower)
    del arrays["mm.2.weight"]
    with (
        open_gguf(rewritten(tower, arrays, tmp_path / "odd.gguf")) as file,
        pytest.raises(ModelError, match=r"mm.2.weight is missing"),
    ):
        trace_towers(file)


@pytest.mark.parametrize(
    ("name", "shape", "sentence"),
    [
        ("v.sam.neck.2", (16, 16, 3, 5), "neck.2.weight is missing, or not a filter of 16 x 3 x 3"),
        ("v.sam.net_3", (32, 24, 1, 1), "net_3.weight is missing, or not a filter of"),
        ("v.sam.net_3", (40, 24, 3, 3), "the convolutions output 40 columns, but CLIP reads 32"),
    ],
)
def test_mismatched_filters_are_rejected(name, shape, sentence, tmp_path):
    tower = TOWERS["deepseekocr"]
    arrays = tensors(tower)
    before = arrays[f"{name}.weight"].shape
    shape = tuple(old if i == 1 else new for i, (old, new) in enumerate(zip(before, shape, strict=True)))
    arrays[f"{name}.weight"] = np.zeros(shape, np.float32)
    with (
        open_gguf(rewritten(tower, arrays, tmp_path / "odd.gguf")) as file,
        pytest.raises(ModelError, match=sentence),
    ):
        trace_towers(file)


def test_mismatched_piece_is_rejected(tmp_path):
    one = open_tower(write_tower(TOWERS["gemma3"], tmp_path / "tower.gguf"), "cpu", Options())
    one.check(encoder_input((1, 8, 8)))
    with pytest.raises(RequestError, match="8 x 8 patches, not 4 x 8"):
        one.check(encoder_input((1, 4, 8)))
    dynamic = replace(TOWERS["qwen2vl"], extra={"vision.image_max_pixels": 16 * 100})
    one = open_tower(write_tower(dynamic, tmp_path / "dynamic.gguf"), "cpu", Options())
    with pytest.raises(RequestError, match="120 patches of 4 x 4 pixels, but the encoder takes 100"):
        one.check(encoder_input((1, 10, 12)))
    with pytest.raises(RequestError, match="3 x 4 patches cannot be merged by 2"):
        one.check(encoder_input((1, 3, 4)))


def test_feature_layers_outside_the_tower_are_rejected(tmp_path):
    for layers, found in (([1, 4], r"\[1, 4\]"), ([2] * 50_000, r"\[2, 2, .*")):  # each would be a part of the plan
        tower = replace(TOWERS["llava"], extra={"vision.feature_layer": layers})
        with (
            open_gguf(write_tower(tower, tmp_path / "tower.gguf")) as file,
            pytest.raises(ModelError, match=rf"feature_layer is {found}; expected different numbers from 1 to 3"),
        ):
            trace_towers(file)


def test_tower_with_absurd_image_size_is_rejected(tmp_path):
    large = replace(TOWERS["gemma4"], extra={**TOWERS["gemma4"].extra, "vision.projector.scale_factor": 10**6})
    with (
        open_gguf(write_tower(large, tmp_path / "large.gguf")) as file,
        pytest.raises(ModelError, match=r"large.gguf: the largest image would have \d+ encoder rows; the maximum is"),
    ):
        trace_towers(file)


def test_impossible_sizes_give_a_one_line_error(tmp_path):
    odd = replace(TOWERS["qwen2vl"], heads=16)
    with pytest.raises(ModelError, match=r"odd.gguf: invalid encoder metadata: sections of 0 \+ 0"):
        open_tower(write_tower(odd, tmp_path / "odd.gguf"), "cpu", Options(threads=1))


def test_too_small_position_table_is_reported_at_the_piece(tmp_path):
    odd = replace(TOWERS["qwen3vl"], extra={**TOWERS["qwen3vl"].extra, "vision.image_size": 8 * PATCH * SIDE})
    tower = open_tower(write_tower(odd, tmp_path / "odd.gguf"), "cpu", Options(threads=1))
    with pytest.raises(RequestError, match=r"position_embd.weight has 64 rows, but the input needs more"):
        tower.check(encoder_input((1, 4, 6)))
    tower.close()


def test_other_number_of_grouped_heads_is_rejected(tmp_path):
    tower = TOWERS["exaone4.5"]
    odd = replace(tower, extra={**tower.extra, "vision.attention.head_count_kv": 4})
    sentence = (
        r"v.blk.0.attn_qkv.weight has 64 rows, but 4 heads and twice 4 KV heads \(metadata key"
        r" clip.vision.attention.head_count_kv\) of 8 need 96"
    )
    with open_gguf(write_tower(odd, tmp_path / "odd.gguf")) as file, pytest.raises(ModelError, match=sentence):
        trace_towers(file)


def test_exaone_4_5_without_windows_sees_all(tmp_path):
    tower = TOWERS["exaone4.5"]
    keys = {key: value for key, value in tower.extra.items() if "n_wa_pattern" not in key}
    whole = {"vision.n_wa_pattern": 1}
    one, other = (
        open_tower(write_tower(replace(tower, extra=extra), tmp_path / f"{i}.gguf"), "cpu", Options(threads=1))
        for i, extra in enumerate((keys, keys | whole))
    )
    windowed = open_tower(write_tower(tower, tmp_path / "windowed.gguf"), "cpu", Options(threads=1))
    seen = encoder_input(tower.grids[0])
    np.testing.assert_array_equal(one.rows(seen), other.rows(seen))
    assert np.abs(one.rows(seen) - windowed.rows(seen)).max() > 1e-2
    for opened in (one, other, windowed):
        opened.close()
