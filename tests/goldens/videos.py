"""Records what Qwen's video processors do: `python -m tests.goldens.videos` in the environment of make.py.

videos.npz has the frames that it chooses, the sizes that it resizes to, some numbers of the patches that it cuts, also
of frames that it resizes, and what Qwen3VLProcessor writes for a video. That text stands in place of the template's
`<|vision_start|><|video_pad|><|vision_end|>`, as in its release with the models, 4.57, and in vLLM; later releases
leave the outer marks around it.

Of Qwen 2 and 2.5 VL it has frames, sizes, patches, and the positions of all rows in a prompt. Releases before 5 number
the text after a video from its largest position on, as the paper of Qwen 2 VL says; 5.23 does so for the answer alone,
so `FOLLOWED` has videos whose time is no longer than their sides, for which all releases agree, and `LATER` others.
"""

from pathlib import Path

import numpy as np

from tests.goldens.images import made

FILE = Path(__file__).with_name("videos.npz")
SIZE = {"shortest_edge": 4096, "longest_edge": 25_165_824}  # as the checkpoints' configurations have it

LENGTHS = [(n, rate) for n in (2, 3, 4, 7, 50, 61, 640, 9999, 17_000) for rate in (1, 10, 24, 29.97, 60)]
SIZES = [(n, *size) for n in (2, 3, 4, 5, 10, 61, 767, 768)
         for size in ((48, 64), (5, 40), (1080, 1920), (2160, 3840), (480, 100), (33, 31), (300, 2))]  # fmt: skip

SAID = [(n, rate) for n in (3, 50, 61) for rate in (10, 29.97)]
ROWS = 2  # of a pair, in texts

# Of Qwen 2 and 2.5: pairs of frames, lines and columns of rows, and chosen frames of a second.
FOLLOWED = [(1, 2, 3, 2.0), (3, 4, 6, 2.0), (2, 3, 2, 1.9)]
LATER = [(5, 2, 3, 2.0), (7, 2, 2, 1.37), (4, 2, 3, 8.0)]
BEFORE, AFTER = 3, 2  # tokens around the video


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


def _positions(model, config, grid, rate):
    """Returns what all tokens of a prompt with one video turn by, [3, n]."""
    import torch

    frames, height, width = grid
    n = frames * height * width
    kinds = torch.tensor([[0] * BEFORE + [2] * n + [0] * AFTER])
    fake = model.__new__(model)
    object.__setattr__(fake, "config", config)
    found, _ = model.get_rope_index(
        fake,
        torch.zeros_like(kinds),
        kinds,
        video_grid_thw=torch.tensor([[frames, 2 * height, 2 * width]]),
        second_per_grid_ts=torch.tensor([2 / rate]),
    )
    return found[:, 0].numpy().astype(np.int32)


def qwen2(record):
    """Records what Qwen 2 VL's video processor, which is that of 2.5, does, and both models' positions."""
    import sys
    from types import ModuleType, SimpleNamespace

    import torch

    # Its file imports torchvision, which the methods below do not call.
    for name in ("", ".transforms", ".transforms.v2", ".transforms.v2.functional"):
        sys.modules.setdefault(f"torchvision{name}", ModuleType(f"torchvision{name}"))
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
    from transformers.video_processing_utils import BaseVideoProcessor
    from transformers.video_utils import VideoMetadata

    processor = Qwen2VLVideoProcessor.__new__(Qwen2VLVideoProcessor)
    processor.num_frames = None
    rates = []
    for n, rate in LENGTHS:
        its = VideoMetadata(total_num_frames=n, fps=rate)
        record[f"qwen2 chosen {n} {rate}"] = processor.sample_frames(its, fps=2.0).numpy()
        chosen = record[f"qwen2 chosen {n} {rate}"].tolist()
        rates.append(VideoMetadata(total_num_frames=n, fps=rate, frames_indices=chosen).sampled_fps)
    record["qwen2 rates"] = np.array(rates)
    found = []
    BaseVideoProcessor.resize = lambda self, image, size, resample: found.append((size.height, size.width))
    for n, height, width in SIZES:
        video = torch.empty(1, n, 0, height, width)
        processor.resize(video, SimpleNamespace(**processor.size), None, factor=28, cap_pixels_per_frame=True)
    record["qwen2 sizes"] = np.array(found, np.int32)
    pixels = torch.tensor(frames()[:, :, :28]).permute(0, 3, 1, 2)[None, :, :, :28].to(torch.float32) * (1 / 255)
    patches, *grid = processor.patchify((pixels - 0.5) / 0.5, 14, 2, 2)
    record["qwen2 grid"], record["qwen2 patches"] = np.array(grid), sampled(patches[0].numpy())
    vision = SimpleNamespace(spatial_merge_size=2, tokens_per_second=2)
    for *grid, rate in FOLLOWED + LATER:
        for name, model in (("qwen2", Qwen2VLModel), ("qwen2.5", Qwen2_5_VLModel)):
            found = _positions(model, SimpleNamespace(vision_config=vision), grid, rate)
            record[f"{name} positions {grid} {rate}"] = found


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
    qwen2(record)
    np.savez_compressed(FILE, **record)
    print(f"{FILE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
