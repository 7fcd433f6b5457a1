"""Records what transformers' processors make of small images: `python -m tests.goldens.images` in its environment.

Of each image that a tower reads, images.npz has the size and sixty of its values.
"""

from pathlib import Path

import numpy as np

FILE = Path(__file__).with_name("images.npz")

# Family, and (width, height) of the image that is made.
CASES = [
    *(("gemma3", size) for size in ((40, 30), (300, 180), (64, 64))),
    *(("llava", size) for size in ((40, 30), (120, 200), (64, 64), (1, 1))),
    *(("qwen2", size) for size in ((40, 30), (300, 180), (90, 400), (7, 7), (100, 1))),
    *(("qwen3", size) for size in ((40, 30), (300, 180))),
    *(("pixtral", size) for size in ((40, 30), (300, 180), (100, 1))),
    *(("mistral3", size) for size in ((40, 30), (300, 180))),
    *(("idefics3", size) for size in ((40, 30), (300, 180), (90, 400), (64, 64), (1, 1))),
    *(("smolvlm", size) for size in ((40, 30), (90, 400))),
    *(("internvl", size) for size in ((40, 30), (300, 180), (90, 400), (64, 64), (1, 1))),
    *(("llava1.6", size) for size in ((40, 30), (300, 180), (90, 400), (64, 64), (1, 1))),
    *(("gemma4", size) for size in ((40, 30), (300, 180), (90, 400), (400, 5))),
    *(("glm4v", size) for size in ((40, 30), (300, 180), (90, 400), (100, 5))),
    *(("paddleocr", size) for size in ((40, 30), (300, 180), (90, 400), (100, 5), (5, 100))),
    *(("minicpmv4.6", size) for size in ((40, 30), (300, 180), (90, 400), (64, 64), (1, 1))),
    *(("hunyuanvl", size) for size in ((40, 30), (300, 180), (90, 400))),
    # Sizes whose padding is even: its successor's processor puts what is odd on the other side.
    *(("deepseekocr", size) for size in ((40, 30), (200, 100), (100, 400), (64, 64))),
]
PINPOINTS = [[56, 112], [112, 56], [112, 112], [168, 56], [56, 168]]
MEAN, STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]


def made(width, height):
    """Returns the pixels of an image with edges, slopes and noise."""
    y, x = np.mgrid[:height, :width]
    noise = np.random.default_rng(width * 1000 + height).integers(0, 64, (height, width))
    red = (x * 255 // max(1, width - 1)) ^ noise
    green = np.where((x // 5 + y // 7) % 2, 230, 20)
    blue = (y * 255 // max(1, height - 1) + noise) % 256
    return np.stack([red, green, blue], axis=-1).astype(np.uint8)


def sampled(values):
    """Returns some values of an image [3, height, width], spread over all of it."""
    flat = values.reshape(-1)
    return flat[:: max(1, len(flat) // 60)].astype(np.float32)


def _processors():
    from transformers.models.deepseek_ocr2.image_processing_pil_deepseek_ocr2 import DeepseekOcr2ImageProcessorPil
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
    from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
    from transformers.models.hunyuan_vl.image_processing_pil_hunyuan_vl import HunYuanVLImageProcessorPil
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
    from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
    from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
    from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import MiniCPMV4_6ImageProcessorPil
    from transformers.models.paddleocr_vl.image_processing_pil_paddleocr_vl import PaddleOCRVLImageProcessorPil
    from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

    half, own = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}, {"image_mean": MEAN, "image_std": STD}
    square = {"height": 56, "width": 56}
    tiles = {"size": {"longest_edge": 128}, "max_image_size": {"longest_edge": 32}, "do_pad": False}
    return {
        "gemma3": Gemma3ImageProcessorPil(size=square, **half),
        "llava": LlavaImageProcessorPil(size=square, crop_size=square, do_pad=True, **own),
        "qwen2": Qwen2VLImageProcessorPil(min_pixels=56 * 56, max_pixels=28 * 28 * 40, **own),
        "qwen3": Qwen2VLImageProcessorPil(min_pixels=64 * 64, max_pixels=32 * 32 * 30, patch_size=16, **half),
        "pixtral": PixtralImageProcessorPil(size={"longest_edge": 128}, patch_size=16, **own),
        "mistral3": PixtralImageProcessorPil(size={"longest_edge": 140}, patch_size=28, **own),
        "idefics3": Idefics3ImageProcessorPil(**tiles, **half),
        "smolvlm": SmolVLMImageProcessorPil(**tiles, **half),
        "internvl": GotOcr2ImageProcessorPil(size=square, crop_to_patches=True, max_patches=6, **own),
        "llava1.6": LlavaNextImageProcessorPil(
            size={"shortest_edge": 56}, crop_size=square, image_grid_pinpoints=PINPOINTS, **own
        ),
        "gemma4": Gemma4ImageProcessorPil(patch_size=4, max_soft_tokens=70, pooling_kernel_size=3),
        # Two frames count: half of these pixels are the image's.
        "glm4v": Glm4vImageProcessorPil(
            size={"shortest_edge": 2 * 28 * 28 * 8, "longest_edge": 2 * 28 * 28 * 40}, **own
        ),
        "minicpmv4.6": MiniCPMV4_6ImageProcessorPil(scale_resolution=112, **half),
        "hunyuanvl": HunYuanVLImageProcessorPil(min_pixels=32 * 32 * 6, max_pixels=32 * 32 * 40, **own),
        "deepseekocr": DeepseekOcr2ImageProcessorPil(
            size={"height": 128, "width": 128}, tile_size=80, max_patches=9, **half
        ),
        "paddleocr": PaddleOCRVLImageProcessorPil(
            size={"shortest_edge": 28 * 28 * 6, "longest_edge": 28 * 28 * 40}, **own
        ),
    }


def _images(name, processor, pixels):
    """Returns the images [3, height, width] that a processor makes."""
    from PIL import Image

    found = processor(images=[Image.fromarray(pixels)], return_tensors=None if "idefics" in name else "np")
    values = found["pixel_values"]
    if name == "gemma4":
        at = np.asarray(found["image_position_ids"])[0]
        n, patch = int((at[:, 0] >= 0).sum()), processor.patch_size
        width, height = (int(one) + 1 for one in at.max(axis=0))
        cut = np.asarray(values)[0, :n].reshape(height, width, patch, patch, 3).transpose(4, 0, 2, 1, 3)
        return [cut.reshape(3, height * patch, width * patch)]
    if name == "minicpmv4.6":  # patches of all pieces are one line
        sizes = np.asarray(found["target_sizes"])
        ends = np.cumsum(sizes.prod(axis=1) * 14)
        parts = np.split(np.asarray(values)[0], ends[:-1], axis=-1)
        cut = [one.reshape(3, 14, h, w, 14).swapaxes(1, 2) for one, (h, w) in zip(parts, sizes, strict=True)]
        return [one.reshape(3, one.shape[1] * 14, -1) for one in cut]
    if name == "deepseekocr":  # tiles come first in the prompt
        tiles = np.asarray(found["pixel_values_local"]) if "pixel_values_local" in found else ()
        return [*tiles, *np.asarray(values)]
    if name in ("paddleocr", "hunyuanvl"):
        _, height, width = (int(one) for one in np.asarray(found["image_grid_thw"])[0])
        patch = processor.patch_size
        cut = np.asarray(values).reshape(height, width, 3, patch, patch).transpose(2, 0, 3, 1, 4)
        return [cut.reshape(3, height * patch, width * patch)]
    if name.startswith(("qwen", "glm4v")):
        _, height, width = (int(one) for one in np.asarray(found["image_grid_thw"])[0])
        patch = processor.patch_size
        cut = np.asarray(values).reshape(height // 2, width // 2, 2, 2, 3, 2, patch, patch)
        assert (cut[:, :, :, :, :, 0] == cut[:, :, :, :, :, 1]).all()  # two equal frames
        cut = cut[:, :, :, :, :, 0].transpose(4, 0, 2, 5, 1, 3, 6)
        return [cut.reshape(3, height * patch, width * patch)]
    while isinstance(values, list) and len(values) == 1 and not isinstance(values[0], np.ndarray):
        values = values[0]
    if isinstance(values, np.ndarray):
        values = values.reshape(-1, *values.shape[-3:])
    return [np.asarray(one) for one in values]


def main():
    """Writes images.npz."""
    processors = _processors()
    record = {}
    for name, (width, height) in CASES:
        images = _images(name, processors[name], made(width, height))
        for number, one in enumerate(images):
            assert one.shape[0] == 3, (name, one.shape)
            record[f"{name} {width}x{height} {number} {one.shape[1]}x{one.shape[2]}"] = sampled(one)
        print(name, width, height, [one.shape for one in images])
    np.savez_compressed(FILE, **record)


if __name__ == "__main__":
    main()
