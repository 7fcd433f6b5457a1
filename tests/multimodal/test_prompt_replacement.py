"""Prompt layout of an image, by family."""

from dataclasses import replace

import numpy as np
import pytest

from woolly.errors import ModelError, UnsupportedError
from woolly.multimodal import (
    AudioSettings,
    EncoderInput,
    Placeholder,
    ProcessedItem,
    VisionSettings,
    encode_prompt,
    make_replacement,
    read_projector,
    read_vision_settings,
    vision_families,
)

KEYS = {
    "general.architecture": "clip",
    "clip.has_vision_encoder": True,
    "clip.projector_type": "gemma3",
    "clip.vision.image_size": 56,
    "clip.vision.patch_size": 7,
    "clip.vision.image_mean": [0.5, 0.5, 0.5],
    "clip.vision.image_std": [0.5, 0.5, 0.5],
}


def image(*grids, tiles=(0, 0), fill=0.0):
    inputs = [EncoderInput(np.full((int(np.prod(grid)), 12), fill, np.float32), grid) for grid in grids]
    return ProcessedItem.of("image", inputs, tiles=tiles)


def settings(projector, merge_size):
    return VisionSettings("image", projector, 28, 14, (0.5,) * 3, (0.5,) * 3, merge_size)


def shown(replacement):
    return [part if isinstance(part, str) else (part.index, part.first, part.n) for part in replacement.parts]


def test_gemma_3_has_markers_and_bidirectional_rows():
    replacement = make_replacement(image((1, 8, 8)), settings("gemma3", 4))
    assert shown(replacement) == ["\n\n<start_of_image>", (0, 0, 4), "<end_of_image>\n\n"]
    assert replacement.parts[1].is_bidirectional and replacement.parts[1].grid_thw is None


def test_qwen_has_rows_with_lines_and_columns():
    replacement = make_replacement(image((1, 4, 6)), settings("qwen2vl_merger", 2))
    assert shown(replacement) == ["<|vision_start|>", (0, 0, 6), "<|vision_end|>"]
    assert replacement.parts[1].grid_thw == (1, 2, 3) and not replacement.parts[1].is_bidirectional


def test_pixtral_ends_each_line():
    replacement = make_replacement(image((1, 4, 6)), settings("pixtral", 2))
    assert shown(replacement) == [(0, 0, 3), "[IMG_BREAK]", (0, 3, 3), "[IMG_END]"]


def test_idefics_3_names_each_tile():
    grid, fence = (1, 4, 4), "<fake_token_around_image>"
    whole = make_replacement(image(grid), settings("idefics3", 2))
    assert shown(whole) == [f"{fence}<global-img>", (0, 0, 4), fence]
    tiles = make_replacement(image(grid, grid, grid, tiles=(1, 2)), settings("idefics3", 2))
    assert shown(tiles) == [
        f"{fence}<row_1_col_1>", (0, 0, 4), f"{fence}<row_1_col_2>", (1, 0, 4),
        f"\n\n{fence}<global-img>", (2, 0, 4), fence,
    ]  # fmt: skip


def test_adjacent_texts_are_encoded_as_one():
    rows = Placeholder(image((1, 2, 2)), 0, 0, 4)
    seen = []

    def encode(text):
        seen.append(text)
        return [len(text)]

    assert encode_prompt(("a\n", "\nb", rows, "", "c"), encode) == (4, rows, 1)
    assert seen == ["a\n\nb", "c"]


def test_digest_covers_all_tower_input():
    one = image((1, 2, 2))
    assert one.digest == image((1, 2, 2)).digest
    others = (image((1, 2, 2), fill=1.0), image((1, 1, 4)), image((1, 2, 2), tiles=(1, 1)))
    assert len({one.digest, *(other.digest for other in others)}) == 4


def test_settings_are_read_from_the_keys_of_the_file():
    read = read_vision_settings({**KEYS, "clip.vision.projector.scale_factor": 2, "clip.vision.image_max_pixels": 99})
    assert (read.projector, read.merge_size, read.max_pixels, read.min_pixels) == ("gemma3", 2, 99, None)
    assert read_vision_settings(KEYS).merge_size == vision_families()["gemma3"].merge_size == 4
    assert read.merged_grid((1, 8, 8)) == (1, 4, 4)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"general.architecture": "llama"}, ModelError, "not a projector file"),
        ({"clip.has_vision_encoder": False}, UnsupportedError, "has no image"),
        ({"clip.projector_type": "unheard_of"}, UnsupportedError, "unheard_of"),
        ({"clip.vision.patch_size": 0}, ModelError, "patch_size is 0"),
        ({"clip.vision.image_mean": [0.5]}, ModelError, "image_mean has 1 numbers"),
        ({"clip.vision.image_std": [0.5, 0, 0.5]}, ModelError, "above 0"),
        ({"clip.vision.projector.scale_factor": 0}, ModelError, "scale_factor is 0"),
        ({"clip.vision.image_grid_pinpoints": [56, 60]}, ModelError, "multiples of the image_size 56"),
        ({"clip.projector_type": "resampler"}, UnsupportedError, "minicpmv_version is 2; expected 3"),
        (
            {"clip.projector_type": "granite4_vision"},
            ModelError,
            "needs the metadata keys .*window_side and query_side",
        ),
        ({"clip.vision.patch_size": 1 << 31}, ModelError, "expected an integer from 1 to 2147483647"),
        ({"clip.vision.image_mean": ["a", "b", "c"]}, ModelError, "image_mean is not an array of numbers"),
        ({"clip.vision.image_mean": 0.5}, ModelError, "image_mean is not an array of numbers"),
        ({"clip.vision.image_std": [0.5, float("nan"), 0.5]}, ModelError, "image_std is not an array of numbers"),
        ({"clip.vision.image_grid_pinpoints": [float("inf"), 56]}, ModelError, "pinpoints is not an array of numbers"),
        # Arrays compare with a text element by element, and have no truth.
        ({"general.architecture": np.zeros(2)}, ModelError, "not a projector file"),
        ({"clip.has_vision_encoder": np.ones(2)}, UnsupportedError, "has no image"),
        ({"clip.projector_type": np.ones(2)}, UnsupportedError, "projector type '' is not supported"),
    ],
)
def test_invalid_file_is_rejected_by_name(change, error, says):
    for read in (read_vision_settings, read_projector):
        with pytest.raises(error, match=says):
            read({**KEYS, **change})


def test_llava_1_6_lists_tiles_line_by_line_without_padding():
    grid = (1, 2, 2)
    tiles = ProcessedItem.of(
        "image", [EncoderInput(np.zeros((4, 12), np.float32), grid)] * 3, tiles=(1, 2), size=(10, 40)
    )
    tiled = VisionSettings("image", "mlp", 28, 14, (0.5,) * 3, (0.5,) * 3, pinpoints=((28, 56),))
    end = (0, 4, 1)  # the row of the file after the overview's own
    # 4 to 1 in 4 x 2 patches: one line of the middle is the image, and half a line is cut from neither side.
    assert shown(make_replacement(tiles, tiled)) == [(0, 0, 4), (1, 0, 2), (2, 0, 2), end, (1, 2, 2), (2, 2, 2), end]
    high = ProcessedItem.of("image", tiles.inputs, tiles=(2, 1), size=(90, 30))
    assert shown(make_replacement(high, tiled))[:3] == [(0, 0, 4), (1, 0, 2), end]


def test_granite_vision_4_files_list_widths_of_tile_grids_before_heights():
    own = {"clip.projector_type": "granite4_vision", "clip.vision.projector.window_side": 8}
    sizes = {"clip.vision.image_size": 384, "clip.vision.patch_size": 16, "clip.vision.projector.query_side": 4}
    found = read_vision_settings({**KEYS, **own, **sizes, "clip.vision.image_grid_pinpoints": [768, 384, 384, 768]})
    assert found.pinpoints == ((384, 768), (768, 384)) and found.merge_size == 2
    # 144 rows of the overview, and 12 lines of two tiles, less the padding above and below.
    for size, n_rows in (((400, 800), 144 + 12 * 25), ((80, 768), 144 + 2 * 25), ((1, 384), 144)):
        tiling = found.family.choose_tiling(*size, found)
        assert tiling.tiles == (1, 2) and make_replacement(tiling.empty_item(size, found), found).n_rows == n_rows


def test_deepseek_ocr_lists_tiles_line_by_line_then_the_overview():
    tile, whole = (1, 4, 8), (1, 8, 4)
    seen = settings("deepseekocr", 4)
    end, last = (2, 2, 1), (2, 3, 1)  # rows of the file after the overview's own
    tiled = make_replacement(image(tile, tile, whole, tiles=(1, 2)), seen)
    assert shown(tiled) == [(0, 0, 2), (1, 0, 2), end, (2, 0, 1), end, (2, 1, 1), end, last]
    assert shown(make_replacement(image(whole), seen)) == [(0, 0, 1), (0, 2, 1), (0, 1, 1), (0, 2, 1), (0, 3, 1)]


def test_deepseek_ocr_files_with_clip_sizes_use_those_of_sam():
    own = {"clip.projector_type": "deepseekocr", "clip.vision.projector.scale_factor": 1}
    sizes = {"clip.vision.image_size": 224, "clip.vision.patch_size": 14}
    found = read_vision_settings({**KEYS, **own, **sizes})
    assert (found.image_size, found.patch_size, found.tile_size, found.merge_size) == (1024, 16, 640, 4)
    # A page of 1,700 x 2,200 pixels: six tiles, 20 lines of 20 rows and more, each line with its end, and an overview.
    tiling = vision_families()["deepseekocr"].choose_tiling(2200, 1700, found)
    assert tiling.tiles == (3, 2) and tiling.sizes[-1] == (1024, 1024) and set(tiling.sizes[:-1]) == {(640, 640)}
    assert make_replacement(tiling.empty_item((2200, 1700), found), found).n_rows == 30 * 21 + 16 * 17 + 1
    assert vision_families()["deepseekocr"].choose_tiling(640, 500, found).sizes == ((1024, 1024),)


def test_deepseek_ocr_2_lists_tiles_without_ends_of_lines():
    tile, whole = (1, 4, 8), (1, 8, 4)
    tiled = make_replacement(image(tile, tile, whole, tiles=(1, 2)), settings("deepseekocr2", 4))
    assert shown(tiled) == [(0, 0, 2), (1, 0, 2), (2, 0, 3)]
    own = {"clip.projector_type": "deepseekocr2", "clip.vision.image_size": 1024, "clip.vision.patch_size": 16}
    found = read_vision_settings({**KEYS, **own})
    assert (found.tile_size, found.max_tiles, found.merge_size) == (768, 6, 4)
    for size, tiles in (((768, 700), (0, 0)), ((1, 769), (1, 6)), ((2200, 1700), (3, 2)), ((4320, 7680), (1, 2))):
        tiling = found.family.choose_tiling(*size, found)
        assert tiling.tiles == tiles
        n_rows = make_replacement(tiling.empty_item(size, found), found).n_rows
        assert n_rows == 257 + 144 * tiles[0] * tiles[1]


def test_hunyuan_vl_delimits_images_and_lines_with_positioned_rows():
    laid = make_replacement(image((1, 4, 6)), settings("hunyuanvl", 2), 3)
    begin, end, line = (0, 7, 1), (0, 8, 1), (0, 6, 1)  # rows of the file after the image's own
    marks = ["<｜hy_place▁holder▁no▁100｜>", "<｜hy_place▁holder▁no▁101｜>"]
    assert shown(laid) == [marks[0], begin, (0, 0, 3), line, (0, 3, 3), line, end, marks[1]]
    assert [part.cell for part in laid.parts if isinstance(part, Placeholder)] == [
        None, (0, 0, 3), (0, 3, 3), (1, 0, 3), (1, 3, 3), None
    ]  # fmt: skip


def test_lightonocr_has_only_rows_within_the_longest_side_of_its_file():
    assert shown(make_replacement(image((1, 4, 6)), settings("lightonocr", 2))) == [(0, 0, 6)]
    own = settings("lightonocr", 2)
    longest = 20 * own.patch_size
    larger, smaller = (vision_families()["lightonocr"].choose_tiling(9000, 4500, one).sizes[0] for one in (
        replace(own, preproc_image_size=longest), replace(own, image_size=longest // 2)))  # fmt: skip
    assert larger == (longest, longest // 2) and max(smaller) == longest // 2


def test_gemma_3n_pads_each_audio_piece_and_ends_it_with_a_row():
    audio = AudioSettings("audio", "gemma3na", 16)
    frames = [EncoderInput(np.zeros((n, 16), np.float32), (1, 1, n)) for n in (2997, 33)]
    mark, after = "\n\n<start_of_audio>", "\n\n"
    assert shown(make_replacement(ProcessedItem.of("audio", frames), audio)) == [
        mark, (0, 0, 188), (0, 189, 1), after + mark, (1, 0, 3), *[(1, 3, 1)] * 185, (1, 4, 1), after
    ]  # fmt: skip


def test_tiles_of_other_families_have_their_markers():
    grid = (1, 4, 4)
    four = image(grid, grid, grid, tiles=(1, 2))
    assert shown(make_replacement(four, settings("lfm2", 2))) == [
        "<|image_start|><|img_row_1_col_1|>", (0, 0, 4), "<|img_row_1_col_2|>", (1, 0, 4), "<|img_thumbnail|>",
        (2, 0, 4), "<|image_end|>",
    ]  # fmt: skip
    assert shown(make_replacement(image(grid), settings("lfm2", 2))) == ["<|image_start|>", (0, 0, 4), "<|image_end|>"]
    assert shown(make_replacement(four, settings("llama4", 2))) == [
        "<|image_start|>", (0, 0, 4), "<|tile_x_separator|>", (1, 0, 4), "<|tile_y_separator|><|image|>", (2, 0, 4),
        "<|image_end|>",
    ]  # fmt: skip
    assert shown(make_replacement(image(grid), settings("llama4", 2)))[0] == "<|image_start|><|image|>"
    sliced = replace(settings("resampler", 1), n_queries=7)
    assert shown(make_replacement(image(*[grid] * 3, tiles=(2, 1)), sliced, 3)) == [
        "<image_id>3</image_id><image>", (0, 0, 7), "</image><slice>", (1, 0, 7), "</slice>\n<slice>", (2, 0, 7),
        "</slice>",
    ]  # fmt: skip
    newer = image((1, 4, 8), grid, grid, tiles=(1, 2))  # each has as many rows as its patches make
    assert shown(make_replacement(newer, settings("minicpmv4_6", 4), 1)) == [
        "<image_id>1</image_id><image>", (0, 0, 2), "</image><slice>", (1, 0, 1), "</slice><slice>", (2, 0, 1),
        "</slice>",
    ]  # fmt: skip
    assert shown(make_replacement(image(*[grid] * 5, tiles=(2, 2)), settings("step3vl", 4))) == [
        "<patch_start>", (0, 0, 1), "<patch_end><patch_start>", (1, 0, 1), "<patch_end><patch_newline><patch_start>",
        (2, 0, 1), "<patch_end><patch_start>", (3, 0, 1), "<patch_end><im_start>", (4, 0, 1), "<im_end>",
    ]  # fmt: skip
    kimi, omni = (make_replacement(image((1, 4, 6)), settings(name, 2)) for name in ("kimivl", "qwen2.5o"))
    assert shown(kimi) == ["<|media_start|>image<|media_content|>", (0, 0, 6), "<|media_end|>"]
    assert shown(omni) == ["<|vision_bos|>", (0, 0, 6), "<|vision_eos|>"]
    assert shown(make_replacement(image((1, 4, 6)), settings("dots_ocr", 2))) == ["<|img|>", (0, 0, 6), "<|endofimg|>"]
    assert kimi.parts[1].grid_thw is None and omni.parts[1].grid_thw == (1, 2, 3)
    assert shown(make_replacement(image((1, 4, 6)), settings("glm4v", 2)))[0] == "<|begin_of_image|>"
    gemma = make_replacement(image((1, 6, 6)), settings("gemma4v", 3))
    assert shown(gemma) == ["<|image>", (0, 0, 4), "<image|>"] and gemma.parts[1].is_bidirectional
