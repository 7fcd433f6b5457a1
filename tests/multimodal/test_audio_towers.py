"""Rows of audio towers agree with transformers, from samples on, and their bits depend on nothing but the audio."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.cases.audio_towers import AUDIO_TOWERS, prepared_audio, samples, tensors, write_audio_tower
from tests.cases.numpy_towers import NUMPY_AUDIO_TOWERS
from tests.cases.towers import TOWERS, encoder_input
from tests.cases.towers import tensors as tower_tensors
from woolly.engine.multimodal import open_tower
from woolly.errors import ModelError, RequestError, UnsupportedError
from woolly.gguf import GGUFWriter, open_gguf
from woolly.multimodal import EncoderInput, audio_families
from woolly.multimodal.encoder import trace_towers
from woolly.quant import GGMLType
from woolly.runtime import Options

GOLDENS = Path(__file__).parent.parent / "goldens"
# Of rows against transformers: at most 1.1e-6 was measured.
_BOUNDS = dict.fromkeys(("granite_speech", "gemma3na", "gemma4a", "lfm2a"), 5e-6)


def rows_of(tower, prepared):
    return np.concatenate([tower.rows(encoder_input, "audio") for encoder_input in prepared.inputs])


@pytest.mark.parametrize("name", NUMPY_AUDIO_TOWERS)
def test_audio_tower_matches_numpy(name, tmp_path):
    tiny = AUDIO_TOWERS[name]
    path = write_audio_tower(tiny, tmp_path / "audio.gguf")
    weights = {key: array.astype(np.float64) for key, array in tensors(tiny).items()}
    for which in ("reference", "cpu"):
        tower = open_tower(path, which, Options(threads=2))
        for n in tiny.lengths:
            rows, want = rows_of(tower, prepared_audio(tiny, n)), NUMPY_AUDIO_TOWERS[name](weights, samples(n))
            assert rows.shape == want.shape
            error = np.linalg.norm(rows - want, axis=1) / np.linalg.norm(want, axis=1)
            assert error.max() < 1e-5, (which, n, error.max())
        tower.close()


@pytest.mark.parametrize("name", [name for name in AUDIO_TOWERS if name not in NUMPY_AUDIO_TOWERS])
def test_audio_tower_matches_transformers(name, tmp_path):
    tiny, golden = AUDIO_TOWERS[name], np.load(GOLDENS / f"audio-{name}.npz")
    path = write_audio_tower(tiny, tmp_path / "audio.gguf")
    opened = {which: open_tower(path, which, Options(threads=2)) for which in ("reference", "cpu")}
    lengths, *kept = (golden[key] for key in golden.files)
    for n, length, want in zip(tiny.lengths, lengths, kept, strict=True):
        prepared = prepared_audio(tiny, n)
        after = 2 * (tiny.settings.family.constants is not None)  # rows of the file itself
        assert (
            sum(tiny.settings.merged_grid(encoder_input.grid_thw)[2] + after for encoder_input in prepared.inputs)
            == length
        )
        for which, tower in opened.items():
            if which == "reference" and n != tiny.lengths[0]:
                continue
            rows = rows_of(tower, prepared)
            assert rows.shape[0] == length
            error = np.linalg.norm(rows[:: tiny.keep] - want, axis=1) / np.linalg.norm(want, axis=1)
            assert error.max() < _BOUNDS.get(name, 1e-4), (which, n, error.max())
    for tower in opened.values():
        tower.close()


def test_every_family_has_a_golden_and_a_layout():
    assert set(AUDIO_TOWERS) == set(audio_families())


@pytest.mark.parametrize("name", ["ultravox", "qwen3a", "granite_speech", "gemma3na", "gemma4a"])
def test_rows_do_not_depend_on_threads_nor_on_where_the_work_stops(name, tmp_path):
    tiny = AUDIO_TOWERS[name]
    path = write_audio_tower(tiny, tmp_path / "audio.gguf")
    one, two = open_tower(path, "cpu", Options(threads=1)), open_tower(path, "cpu", Options(threads=3))
    prepared = prepared_audio(tiny, 24_000)
    want = rows_of(one, prepared)
    np.testing.assert_array_equal(rows_of(two, prepared), want)
    run, n_stops = one.start_run(prepared.inputs[0], "audio"), 0
    while (got := run.advance(0.0)) is None:
        n_stops += 1
    assert n_stops > 10
    np.testing.assert_array_equal(got, want)
    one.close()
    two.close()


def test_sliced_filters_match_unsliced_ones(tmp_path, monkeypatch):
    path, prepared = (
        write_audio_tower(AUDIO_TOWERS["qwen3a"], tmp_path / "audio.gguf"),
        prepared_audio(AUDIO_TOWERS["qwen3a"], 24_000),
    )
    whole = open_tower(path, "cpu", Options(threads=2))
    monkeypatch.setattr("woolly.multimodal.encoder.tracing._MAX_ROWS", 77)
    cut = open_tower(path, "cpu", Options(threads=2))
    np.testing.assert_array_equal(rows_of(cut, prepared), rows_of(whole, prepared))
    whole.close()
    cut.close()


def rewritten(tiny, arrays, path, **keys):
    """Write the file of a tower with changed tensors and keys."""
    with open_gguf(write_audio_tower(tiny, path.with_suffix(".whole"))) as file:
        writer = GGUFWriter(path)
        for key, value in (dict(file.metadata) | keys).items():
            writer.add(key, value)
        for name, array in arrays.items():
            writer.add_tensor(name, array, GGMLType.F16 if "conv" in name and array.ndim > 2 else GGMLType.F32)
        writer.write()
    return path


def test_file_may_hold_image_and_audio_towers_with_one_unknown(tmp_path, caplog):
    tiny, vision_tower = AUDIO_TOWERS["qwen2.5o"], TOWERS["qwen2.5o"]  # one type for both
    vision = {
        "clip.has_vision_encoder": True, "clip.vision.image_size": 32,
        "clip.vision.patch_size": 4, "clip.vision.embedding_length": 32, "clip.vision.block_count": 2,
        "clip.vision.attention.head_count": 2, "clip.vision.attention.layer_norm_epsilon": 1e-6,
        "clip.vision.image_mean": [0.5] * 3, "clip.vision.image_std": [0.5] * 3,
        **{f"clip.{key}": value for key, value in vision_tower.extra.items()},
    }  # fmt: skip
    both = rewritten(tiny, tensors(tiny) | tower_tensors(vision_tower), tmp_path / "both.gguf", **vision)
    tower = open_tower(both, "cpu", Options(threads=1))
    assert tower.vision is not None and tower.audio is not None and tower.width == 64
    assert tower.rows(prepared_audio(tiny, 8_500).inputs[0], "audio").shape == (13, 64)
    assert tower.rows(encoder_input(vision_tower.grids[0]), "image").shape == (10, 64)
    tower.close()
    odd = vision | {"clip.vision.projector_type": "gemma9v"}
    tower = open_tower(
        rewritten(tiny, tensors(tiny) | tower_tensors(vision_tower), tmp_path / "odd.gguf", **odd),
        "cpu",
        Options(threads=1),
    )
    assert tower.vision is None and tower.audio is not None
    assert "one of the two encoders of odd.gguf is not used: projector type 'gemma9v'" in caplog.text
    tower.close()


def test_unusable_files_are_rejected_by_name(tmp_path):
    tiny = AUDIO_TOWERS["ultravox"]
    cases = [
        (tensors(tiny) | {"a.blk.0.surprise.weight": np.zeros(3, np.float32)}, {}, ModelError, "a.blk.0.surprise"),
        (
            {k: v for k, v in tensors(tiny).items() if k != "mm.a.mlp.2.weight"},
            {},
            ModelError,
            "mm.a.mlp.2.weight is m",
        ),
        (
            tensors(tiny),
            {"clip.projector_type": "parakeet"},
            UnsupportedError,
            "audio projector type 'parakeet' is not supported",
        ),
        (tensors(tiny), {"clip.audio.projector.stack_factor": 0}, ModelError, "stack_factor is 0; expected an integer"),
        (tensors(tiny), {"clip.audio.num_mel_bins": 10**6}, ModelError, "num_mel_bins is 1000000"),
        (tensors(tiny), {"clip.has_audio_encoder": False}, UnsupportedError, "no image or audio encoder"),
        (
            tensors(tiny) | {"a.position_embd.weight": np.zeros((9, 32), np.float32)},
            {},
            ModelError,
            "has 9 rows; expected 1500",
        ),
        (
            tensors(AUDIO_TOWERS["qwen3a"]),
            {"clip.projector_type": "qwen3a", "clip.audio.num_mel_bins": 64},
            ModelError,
            "rows",
        ),
    ]
    for i, (arrays, keys, error, message) in enumerate(cases):
        with (
            open_gguf(rewritten(tiny, arrays, tmp_path / f"{i}.gguf", **keys)) as file,
            pytest.raises(error, match=rf"{i}.gguf: .*{message}"),
        ):
            trace_towers(file)


def test_unusable_conformers_are_rejected_by_name(tmp_path):
    granite, gemma = AUDIO_TOWERS["granite_speech"], AUDIO_TOWERS["gemma4a"]
    several = {"clip.audio.feature_layer": [1]}
    cases = [
        (granite, "a.proj_query", {}, ModelError, "tensor a.proj_query is missing"),
        (granite, "a.enc_ctc_out.weight", {}, ModelError, "tensor a.enc_ctc_out.weight is missing"),
        (granite, "", {"clip.audio.chunk_size": 33}, ModelError, "blocks have 33 rows; the maximum is 32"),
        (granite, "", {"clip.audio.block_count": 1}, ModelError, "has 1 layer; expected at least 2"),
        (granite, "", several, UnsupportedError, "features of several layers"),
        (granite, "", {"clip.audio.projector.downsample_rate": 16}, ModelError, "integer from 1 to 15"),
        (
            granite,
            "",
            {"clip.audio.projector.downsample_rate": 1},
            ModelError,
            "a.proj_query has 3 rows, but 15 queries",
        ),
        (granite, "", {"clip.audio.num_mel_bins": 159}, ModelError, "num_mel_bins is 159; expected an even number"),
        (granite, "a.enc_ctc_out.bias", {}, ModelError, "tensor a.enc_ctc_out.bias is missing"),
        (gemma, "a.blk.1.attn_k_rel.weight", {}, ModelError, "a.blk.1.attn_k_rel.weight is missing"),
    ]
    for i, (tiny, without, keys, error, message) in enumerate(cases):
        arrays = {name: array for name, array in tensors(tiny).items() if name != without}
        with (
            open_gguf(rewritten(tiny, arrays, tmp_path / f"{i}.gguf", **keys)) as file,
            pytest.raises(error, match=rf"{i}.gguf: .*{message}"),
        ):
            trace_towers(file)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "granite_speech",
            {"a.enc_ctc_out_mid.weight": (32, 4097), "a.enc_ctc_out.bias": (4097,)},
            "at most 4096 CTC tokens",
        ),
        ("granite_speech", {"a.enc_ctc_out_mid.weight": (416,)}, r"has shape \(416,\) .* a matrix with a column"),
        (
            "granite_speech",
            {"a.enc_ctc_out.bias": (12,)},
            r"a.enc_ctc_out.bias \(12,\); expected a matrix with a column",
        ),
        (
            "qwen3a",
            {"a.position_embd.weight": (9, 32)},
            "a.position_embd.weight has 9 rows, but the input needs more",
        ),
    ],
)
def test_mismatched_tables_are_rejected_at_load(name, changes, message, tmp_path):
    arrays = tensors(AUDIO_TOWERS[name]) | {key: np.zeros(shape, np.float32) for key, shape in changes.items()}
    with (
        open_gguf(rewritten(AUDIO_TOWERS[name], arrays, tmp_path / "audio.gguf")) as file,
        pytest.raises(ModelError, match=message),
    ):
        trace_towers(file)


def test_mismatched_piece_is_rejected(tmp_path):
    tower = open_tower(write_audio_tower(AUDIO_TOWERS["qwen2a"], tmp_path / "audio.gguf"), "cpu", Options(threads=1))
    with pytest.raises(RequestError, match="a frame has 80 values, but the encoder expects 128"):
        tower.check(prepared_audio(replace(AUDIO_TOWERS["qwen2a"], n_mels=80), 3_000).inputs[0], "audio")
    with pytest.raises(RequestError, match="3001 frames; the maximum is 3000"):
        tower.check(EncoderInput(np.zeros((3001, 128), np.float32), (1, 1, 3001)), "audio")
    with pytest.raises(RequestError, match="this model does not support images"):
        tower.check(EncoderInput(np.zeros((4, 48), np.float32), (1, 2, 2)), "image")
    tower.close()
