"""Sizes of images of families whose preprocessing has no recording of transformers, and their rows."""

from dataclasses import replace

import pytest

from woolly.errors import RequestError
from woolly.multimodal import VisionSettings, image_placeholders

CLIP = {"mean": (0.48145466, 0.4578275, 0.40821073), "std": (0.26862954, 0.26130258, 0.27577711)}
# A family, patches per row, height and width of an image, and of its input.
SIZES = [
    ("exaone4_5", 2, (1, 1), (56, 56)),
    ("exaone4_5", 2, (1, 200), (28, 812)),
    ("exaone4_5", 2, (300, 200), (308, 196)),
    ("exaone4_5", 2, (4320, 7680), (728, 1316)),  # at most 1,280 rows
    ("minimax_m3", 2, (1, 1), (56, 56)),
    ("minimax_m3", 2, (1, 200), (28, 196)),  # a row high before the minimum applies
    ("minimax_m3", 2, (4320, 7680), (504, 896)),  # at most 576 rows
    ("phi4", 1, (1, 1), (112, 112)),  # 256 patches would be more than 100 times as large
    ("phi4", 1, (10, 10), (224, 224)),  # at least 256 patches
    ("phi4", 1, (1, 9000), (14, 3584)),
    ("phi4", 1, (700, 700), (700, 700)),
    ("phi4", 1, (4320, 7680), (630, 1120)),  # at most 3,600 patches
    ("youtuvl", 2, (1, 1), (28, 28)),
    ("youtuvl", 2, (300, 200), (308, 224)),
    ("youtuvl", 2, (4320, 7680), (1316, 2324)),  # at a scale of 0.3
]
SMALL = ("phi4", "youtuvl")  # with images below a minimum


def settings_of(projector, merge):
    plain = VisionSettings("image", projector, 392, 14, **CLIP, merge_size=merge)
    return plain.family.read(plain, {})


@pytest.mark.parametrize(("projector", "merge", "size", "shown"), SIZES)
def test_sides_are_multiples_of_a_row_within_limits(projector, merge, size, shown):
    settings = settings_of(projector, merge)
    assert settings.family.choose_tiling(*size, settings).sizes == (shown,)
    side = merge * settings.patch_size
    assert image_placeholders(size[::-1], settings).n_rows >= shown[0] * shown[1] // side**2


@pytest.mark.parametrize("projector", sorted({projector for projector, *_ in SIZES}))
def test_limits_of_a_file_replace_those_of_the_processor(projector):
    settings = settings_of(projector, 2)
    row = (2 * settings.patch_size) ** 2
    small = replace(settings, min_pixels=8 * row, max_pixels=16 * row)
    for size in ((1, 1), (900, 900), (300, 900)):
        ((high, wide),) = small.family.choose_tiling(*size, small).sizes
        assert high * wide <= 16 * row
        assert high * wide >= 8 * row or projector in SMALL


def test_elongated_image_is_rejected():
    settings = settings_of("exaone4_5", 2)
    with pytest.raises(RequestError, match="1 x 8000 pixels, but the limit of the aspect ratio is 200; split it"):
        settings.family.choose_tiling(8000, 1, settings)
