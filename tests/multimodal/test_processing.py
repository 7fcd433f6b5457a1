"""Preparing against what transformers' processors make of the same images, recorded in tests/goldens."""

from dataclasses import replace

import numpy as np
import pytest

from tests.goldens.images import CASES, FILE, MEAN, PINPOINTS, STD, made, sampled
from woolly.errors import RequestError
from woolly.multimodal import MAX_PATCHES, VisionSettings, make_replacement, vision_families
from woolly.multimodal.image import Image
from woolly.multimodal.processing import image_placeholders, process_image
from woolly.multimodal.processing.smart_resize import smart_resize

pytest.importorskip("PIL.Image")

HALF = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
OWN = {"mean": tuple(MEAN), "std": tuple(STD)}
SETTINGS = {
    "gemma3": VisionSettings("image", "gemma3", 56, 14, **HALF, merge_size=4),
    "llava": VisionSettings("image", "mlp", 56, 14, **OWN),
    "qwen2": VisionSettings(
        "image", "qwen2vl_merger", 56, 14, **OWN, merge_size=2, min_pixels=56 * 56, max_pixels=28 * 28 * 40
    ),
    "qwen3": VisionSettings(
        "image", "qwen3vl_merger", 64, 16, **HALF, merge_size=2, min_pixels=64 * 64, max_pixels=32 * 32 * 30
    ),
    "pixtral": VisionSettings("image", "pixtral", 128, 16, **OWN),
    "mistral3": VisionSettings("image", "pixtral", 140, 14, **OWN, merge_size=2),
    "idefics3": VisionSettings("image", "idefics3", 32, 16, **HALF, merge_size=2, preproc_image_size=128),
    "smolvlm": VisionSettings("image", "idefics3", 32, 16, **HALF, merge_size=2),
    "internvl": VisionSettings("image", "internvl", 56, 14, **OWN, merge_size=2, max_tiles=6),
    "llava1.6": VisionSettings("image", "mlp", 56, 14, **OWN, pinpoints=tuple(map(tuple, PINPOINTS))),
    "gemma4": VisionSettings("image", "gemma4v", 48, 4, (0.0,) * 3, (1.0,) * 3, merge_size=3, max_pixels=70 * 144),
    "glm4v": VisionSettings(
        "image", "glm4v", 56, 14, **OWN, merge_size=2, min_pixels=28 * 28 * 8, max_pixels=28 * 28 * 40
    ),
    "paddleocr": VisionSettings(
        "image", "paddleocr", 56, 14, **OWN, merge_size=2, min_pixels=28 * 28 * 6, max_pixels=28 * 28 * 40
    ),
    "lfm2": VisionSettings("image", "lfm2", 256, 16, **HALF, merge_size=2),
    "llama4": VisionSettings("image", "llama4", 56, 14, **HALF, merge_size=2),
    "minicpmv": VisionSettings("image", "resampler", 56, 14, **HALF, n_queries=64),
    "minicpmv4.6": VisionSettings("image", "minicpmv4_6", 112, 14, **HALF, merge_size=4),
    "dots_ocr": VisionSettings("image", "dots_ocr", 0, 14, **OWN, merge_size=2, max_pixels=28 * 28 * 40),
    "hunyuanvl": VisionSettings(
        "image", "hunyuanvl", 64, 16, **OWN, merge_size=2, min_pixels=32 * 32 * 6, max_pixels=32 * 32 * 40
    ),
    "deepseekocr": VisionSettings("image", "deepseekocr", 128, 4, **HALF, merge_size=4, tile_size=80),
    "step3vl": VisionSettings("image", "step3vl", 208, 4, **OWN, merge_size=4, tile_size=144, preproc_image_size=800),
    "granite4_vision": VisionSettings(
        "image", "granite4_vision", 56, 14, **HALF, merge_size=2, pinpoints=((56, 112), (112, 56), (112, 112))
    ),
    "deepseekocr2": VisionSettings("image", "deepseekocr2", 128, 4, **HALF, merge_size=4, tile_size=80),
    "kimivl": VisionSettings("image", "kimivl", 896, 14, **HALF, merge_size=2, max_pixels=60 * 14**2),
}


def image_of(encoder_input, patch):
    """The image [3, height, width] that patches make up."""
    _, height, width = encoder_input.grid_thw
    cut = encoder_input.values.reshape(height, width, 3, patch, patch).transpose(2, 0, 3, 1, 4)
    return cut.reshape(3, height * patch, width * patch)


@pytest.fixture(scope="module")
def record():
    with np.load(FILE) as file:
        return dict(file)


@pytest.mark.parametrize(("family", "size"), CASES)
def test_preprocessing_matches_transformers(record, family, size):
    settings = SETTINGS[family]
    prepared = process_image(Image(made(*size)), settings)
    wanted = {name: values for name, values in record.items() if name.startswith(f"{family} {size[0]}x{size[1]} ")}
    assert len(wanted) == len(prepared.inputs)
    step = 1.01 / 255 / min(settings.std)  # one of 256 values: Pillow's versions may round differently
    for number, encoder_input in enumerate(prepared.inputs):
        shown = image_of(encoder_input, settings.patch_size)
        values = wanted[f"{family} {size[0]}x{size[1]} {number} {shown.shape[1]}x{shown.shape[2]}"]
        apart = np.abs(sampled(shown) - values)
        assert apart.max() <= step
        assert (apart == 0).mean() > 0.95  # to the last bit, but for such roundings
    assert prepared.size == (size[1], size[0])
    n_rows = make_replacement(prepared, settings).n_rows
    assert n_rows == image_placeholders(prepared.size, settings).n_rows
    if not settings.pinpoints and family not in (
        "deepseekocr",
        "hunyuanvl",
    ):  # whose padding is left out, and whose lines have ends
        assert (
            n_rows
            == sum(np.prod(encoder_input.grid_thw) for encoder_input in prepared.inputs) // settings.merge_size**2
        )


def test_tiles_are_counted_in_lines_and_columns():
    assert process_image(Image(made(300, 180)), SETTINGS["idefics3"]).tiles == (3, 4)
    assert process_image(Image(made(90, 400)), SETTINGS["internvl"]).tiles == (5, 1)
    assert process_image(Image(made(64, 64)), SETTINGS["internvl"]).tiles == (0, 0)


@pytest.mark.parametrize("size", [(1, 1), (90, 40), (1, 500), (3000, 20), (60, 60)])
def test_rows_of_gemma_4_12b_show_the_patches_of_gemma_4(size):
    # The same sizes and pixels, cut into patches that are as large as a row.
    small = SETTINGS["gemma4"]
    large = replace(small, projector="gemma4uv", patch_size=small.patch_size * 3, merge_size=1)
    shown = [process_image(Image(made(*size)), one) for one in (small, large)]
    images = [image_of(each.inputs[0], one.patch_size) for each, one in zip(shown, (small, large), strict=True)]
    np.testing.assert_array_equal(*images)
    assert make_replacement(shown[1], large).n_rows == make_replacement(shown[0], small).n_rows


@pytest.mark.parametrize(
    ("size", "shown", "padded"),
    [
        ((1, 1), (1, 1), (28, 28)),
        ((1, 9000), (1, 7168), (28, 7168)),  # a side of 512 patches
        ((9000, 30), (7168, 23), (7168, 28)),
        ((300, 200), (300, 200), (308, 224)),
        ((4320, 7680), (1345, 2392), (1372, 2408)),  # 16,384 whole patches
    ],
)
def test_kimi_k25_never_enlarges_and_pads_with_black(size, shown, padded):
    settings = VisionSettings("image", "kimik25", 896, 14, **HALF, merge_size=2)
    (one,) = process_image(Image(np.full((*size, 3), 255, np.uint8)), settings).inputs
    pixels = image_of(one, 14)
    assert pixels.shape[1:] == padded
    assert (pixels[:, : shown[0], : shown[1]] == 1).all()
    assert (pixels[:, shown[0] :] == -1).all() and (pixels[:, :, shown[1] :] == -1).all()


@pytest.mark.parametrize(
    ("size", "tiles"),
    [
        ((1, 1), (0, 0)),
        ((700, 500), (0, 0)),
        ((300, 500), (1, 2)),  # elongated: tiles of the shorter side
        ((700, 1000), (2, 2)),
        ((600, 1100), (1, 2)),  # a fifth of a tile is left out
        ((40, 1000), (1, 25)),
        ((16, 1000), (2, 2)),  # on a black square
        ((4320, 7680), (4, 6)),  # at most 3,024 pixels per side
        ((9000, 10), (6, 6)),
    ],
)
def test_step3_vl_tiles_large_and_elongated_images(size, tiles):
    settings = VisionSettings("image", "step3vl", 728, 14, **OWN, merge_size=4, tile_size=504)
    tiling = vision_families()["step3vl"].choose_tiling(*size, settings)
    assert tiling.tiles == tiles and tiling.sizes == ((504, 504),) * (tiles[0] * tiles[1]) + ((728, 728),)
    n_tiles = tiles[0] * tiles[1]
    assert make_replacement(tiling.empty_item(size, settings), settings).n_rows == 81 * n_tiles + 169


def test_step3_vl_pads_tiles_and_thin_images_with_black():
    settings = replace(SETTINGS["step3vl"], **HALF)
    for size, width in (((100, 300), None), ((20, 100), 20 / 100)):
        prepared = process_image(Image(np.full((*size, 3), 255, np.uint8)), settings)
        tile, overview = (image_of(prepared.inputs[i], 4) for i in (0, -1))
        if width is None:
            assert prepared.tiles == (1, 2) and (tile[:, :100] == 1).all() and (tile[:, 100:] == -1).all()
            assert (overview == 1).all()
        else:
            assert prepared.tiles == (0, 0)
            edge = int(208 * width)
            assert (overview[:, : edge - 2] == 1).all() and (overview[:, edge + 3 :] == -1).all()


@pytest.mark.parametrize("size", [(1, 1), (512, 512), (1000, 700), (200, 3000), (4320, 7680), (1, 5000)])
def test_nemotron_vl_has_the_tiles_of_internvl(size):
    one = VisionSettings("image", "nemotron_v2_vl", 512, 16, **HALF, merge_size=2)
    tiling, other = (vision_families()[name].choose_tiling(*size, one) for name in ("nemotron_v2_vl", "internvl"))
    assert tiling == other and set(tiling.sizes) == {(512, 512)}
    text = make_replacement(tiling.empty_item(size, one), one)
    assert text.n_rows == 256 * len(tiling.sizes) and (text.parts[0], text.parts[-1]) == ("<img>", "</img>")


@pytest.mark.parametrize("size", [(40, 30), (200, 100), (1, 500), (64, 64)])
def test_deepseek_ocr_2_prepares_the_inputs_of_deepseek_ocr(size):
    one, other = (process_image(Image(made(*size)), SETTINGS[name]) for name in ("deepseekocr2", "deepseekocr"))
    assert one.digest == other.digest


def test_one_image_has_one_digest():
    one, again, other = (
        process_image(Image(made(*size)), SETTINGS["qwen2"]) for size in ((90, 40), (90, 40), (40, 90))
    )
    assert one.digest == again.digest != other.digest


def test_photo_without_limits_of_the_file_takes_at_most_4096_rows():
    assert smart_resize(3024, 4032, 28, 4 * 28**2, 4096 * 28**2) == (1540, 2044)
    bare = VisionSettings("image", "qwen2.5vl_merger", 560, 14, **OWN, merge_size=2)
    assert make_replacement(process_image(Image(np.zeros((2000, 3000, 3), np.uint8)), bare), bare).n_rows <= 4096


def test_file_that_allows_more_pixels_than_the_tower_is_capped():
    wide = VisionSettings("image", "qwen2vl_merger", 64, 2, **OWN, merge_size=2, max_pixels=10**9)
    (encoder_input,) = process_image(Image(made(300, 280)), wide).inputs
    assert 16_000 < len(encoder_input.values) <= MAX_PATCHES


def test_unsupported_shapes_are_rejected():
    with pytest.raises(RequestError, match="300 x 1 pixels, but the limit of the aspect ratio is 200"):
        process_image(Image(made(300, 1)), SETTINGS["qwen2"])
    for size in ((65_535, 1), (328, 65_535)):
        with pytest.raises(RequestError, match="pads it to a square, takes at most 14142 pixels per side"):
            process_image(Image(np.broadcast_to(np.uint8(0), (size[1], size[0], 3))), SETTINGS["llava"])
    with pytest.raises(RequestError, match="20 x 20 pixels, which is too small"):
        process_image(Image(made(20, 20)), replace(SETTINGS["gemma4"], max_pixels=100))
    with pytest.raises(RequestError, match="10 x 4000 pixels, which is too elongated"):
        image_placeholders((4000, 10), replace(SETTINGS["minicpmv4.6"], image_size=448))


@pytest.mark.parametrize("family", SETTINGS)
@pytest.mark.parametrize("size", [(1, 1), (1, 150), (150, 1), (33, 31)])
def test_small_and_thin_images_are_prepared(family, size):
    settings = SETTINGS[family]
    if family.startswith("minicpmv"):  # which bounds shapes by the size of its tower
        settings = replace(settings, image_size=448)
    process_image(Image(made(*size)), settings)


@pytest.mark.parametrize("family", SETTINGS)
@pytest.mark.parametrize("size", [(40, 30), (1100, 700)])
def test_rows_are_counted_without_pixels(family, size):
    settings = SETTINGS[family]
    counted = image_placeholders((size[1], size[0]), settings)
    prepared = process_image(Image(np.zeros((size[1], size[0], 3), np.uint8)), settings)
    shown = make_replacement(prepared, settings)
    assert [part if isinstance(part, str) else (part.index, part.first, part.n) for part in counted.parts] == [
        part if isinstance(part, str) else (part.index, part.first, part.n) for part in shown.parts
    ]


def test_images_are_split_like_their_processors_do():
    """By examples of the processors' own rules, which need torchvision or are not in transformers."""
    llama, lfm, mini = (SETTINGS[name] for name in ("llama4", "lfm2", "minicpmv"))
    assert vision_families()["llama4"].choose_tiling(50, 50, llama).tiles == (0, 0)
    assert vision_families()["llama4"].choose_tiling(100, 300, llama).tiles == (2, 6)
    assert vision_families()["lfm2"].choose_tiling(300, 500, lfm).sizes == ((288, 512),)
    assert vision_families()["lfm2"].choose_tiling(1000, 2000, lfm).sizes == ((512, 512),) * 8 + ((352, 704),)
    assert vision_families()["lfm2"].choose_tiling(1000, 2000, lfm).tiles == (2, 4)
    kimi = replace(SETTINGS["kimivl"], max_pixels=None)
    assert vision_families()["kimivl"].choose_tiling(30, 60, kimi).sizes == ((56, 84),)
    assert vision_families()["kimivl"].choose_tiling(2000, 1000, kimi).sizes == ((1288, 644),)
    (encoder_input,) = process_image(Image(np.full((30, 60, 3), 255, np.uint8)), kimi).inputs
    shown = image_of(encoder_input, 14)
    assert (shown[:, :30, :60] == 1).all() and (shown[:, 30:] == -1).all() and (shown[:, :, 60:] == -1).all()
    with pytest.raises(RequestError, match="8000 x 30 pixels, but this model takes at most 7154 pixels per side"):
        vision_families()["kimivl"].choose_tiling(30, 8000, kimi)
    assert vision_families()["resampler"].choose_tiling(30, 40, mini).sizes == ((42, 70),)
    assert vision_families()["resampler"].choose_tiling(100, 150, mini).tiles == (2, 3)


def test_values_are_rounded_as_in_bfloat16():
    (encoder_input,) = process_image(Image(np.full((56, 56, 3), 100, np.uint8)), SETTINGS["llama4"]).inputs
    assert set(encoder_input.values.view(np.uint32).reshape(-1) & 0xFFFF) == {0}
    assert abs(encoder_input.values[0, 0] - (100 / 255 - 0.5) / 0.5) < 0.004
