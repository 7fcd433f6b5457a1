"""Records what Qwen 3 VL's video processor does: `python -m tests.goldens.videos` in the environment of make.py.

videos.npz has the frames that it chooses, the sizes that it resizes to, some numbers of the patches that it cuts, also
of frames that it resizes, and what Qwen3VLProcessor writes for a video. That text stands in place of the template's
`<|vision_start|><|video_pad|><|vision_end|>`, as in its release with the models, 4.57, and in vLLM; later releases
leave the outer marks around it.
"""

from pathlib import Path

import numpy as np

from tests.goldens.pictures import made

FILE = Path(__file__).with_name("videos.npz")
SIZE = {"shortest_edge": 4096, "longest_edge": 25_165_824}  # as the checkpoints' configurations have it

LENGTHS = [(n, rate) for n in (2, 3, 4, 7, 50, 61, 640, 9999, 17_000) for rate in (1, 10, 24, 29.97, 60)]
SIZES = [(n, *size) for n in (2, 3, 4, 5, 10, 61, 767, 768)
         for size in ((48, 64), (5, 40), (1080, 1920), (2160, 3840), (480, 100), (33, 31), (300, 2))]  # fmt: skip

SAID = [(n, rate) for n in (3, 50, 61) for rate in (10, 29.97)]
ROWS = 2  # of a pair, in texts


def large():
    """Returns five frames that are not of a size that the tower reads, [5, height, width, 3]."""
    return np.stack([np.roll(made(70, 90), 11 * i, axis=1) for i in range(5)])


def frames():
    """Returns three frames, [3, height, width, 3]."""
    return np.stack([np.roll(made(64, 32), 9 * i, axis=1) for i in range(3)])


def sampled(patches):
    """Returns some numbers of each patch."""
    return patches[:, ::37]


def _resized(processor):
    """Returns grid and patches of large frames; torch's filter for bytes, which torchvision calls, resizes them."""
    import torch
    from transformers.image_utils import SizeDict
    from transformers.video_processing_utils import BaseVideoProcessor

    def resize(self, image, size, resample):
        flat = image.flatten(0, 1)
        sides = (size.height, size.width)
        out = torch.nn.functional.interpolate(flat, sides, mode="bicubic", antialias=True)
        return out.unflatten(0, image.shape[:2])

    BaseVideoProcessor.resize = resize
    video = torch.tensor(large()).permute(0, 3, 1, 2)[None]
    video = processor.resize(video, SizeDict(**SIZE), None, factor=32, temporal_factor=2, cap_pixels_per_frame=True)
    patches, *grid = processor.patchify((video.to(torch.float32) * (1 / 255) - 0.5) / 0.5, 16, 2, 2)
    return np.array(grid), sampled(patches[0].numpy())


def _said(n, rate, chosen):
    """Returns the text of a video whose pairs have `ROWS` rows."""
    from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
    from transformers.video_utils import VideoMetadata

    processor = Qwen3VLProcessor.__new__(Qwen3VLProcessor)
    processor.video_processor = Qwen3VLVideoProcessor.__new__(Qwen3VLVideoProcessor)
    processor.video_token, processor.vision_start_token = "<|video_pad|>", "<|vision_start|>"
    processor.vision_end_token = "<|vision_end|>"
    its = VideoMetadata(total_num_frames=n, fps=rate, frames_indices=chosen.tolist())
    grid = np.array([[-(-len(chosen) // 2), 2, 2 * ROWS]])
    return processor.replace_video_token({"video_grid_thw": grid, "video_metadata": [its]}, 0)


def main():
    import torch
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
    from transformers.video_processing_utils import BaseVideoProcessor
    from transformers.video_utils import VideoMetadata

    processor = Qwen3VLVideoProcessor.__new__(Qwen3VLVideoProcessor)  # its methods need no torchvision
    record = {}
    for n, rate in LENGTHS:
        its = VideoMetadata(total_num_frames=n, fps=rate)
        record[f"chosen {n} {rate}"] = processor.sample_frames(its).astype(np.int32)
    found = []
    BaseVideoProcessor.resize = lambda self, image, size, resample: found.append((size.height, size.width))
    limits = type("Limits", (), SIZE)
    for n, height, width in SIZES:
        video = torch.empty(1, n, 0, height, width)
        processor.resize(video, limits, None, factor=32, temporal_factor=2, cap_pixels_per_frame=True)
    record["sizes"] = np.array(found, np.int32)
    pixels = torch.tensor(frames()).permute(0, 3, 1, 2)[None].to(torch.float32) * (1 / 255)
    patches, *grid = processor.patchify((pixels - 0.5) / 0.5, 16, 2, 2)
    record["grid"], record["patches"] = np.array(grid), sampled(patches[0].numpy())
    record["resized grid"], record["resized"] = _resized(processor)
    for n, rate in SAID:
        record[f"said {n} {rate}"] = np.array(_said(n, rate, record[f"chosen {n} {rate}"]))
    np.savez_compressed(FILE, **record)
    print(f"{FILE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
