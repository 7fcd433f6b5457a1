"""Rows of the table of families: all facts about a family of vision or audio encoders.

Each module of `woolly/multimodal/families/` has a tuple `FAMILIES` of these rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from woolly.multimodal.processing.single_image import process_single
from woolly.multimodal.prompt_replacement import all_chunks, all_inputs

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from woolly.gguf import Tensor
    from woolly.multimodal.audio import Audio
    from woolly.multimodal.audio.settings import AudioSettings
    from woolly.multimodal.encoder.params import AudioParams, TowerParams
    from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout
    from woolly.multimodal.encoder.stage import StageBuilder
    from woolly.multimodal.image import Image
    from woolly.multimodal.processed_item import ProcessedItem
    from woolly.multimodal.processing.tiling import Tiling
    from woolly.multimodal.prompt_replacement import Placeholder
    from woolly.multimodal.video import VideoSampling
    from woolly.multimodal.vision_settings import VisionSettings
    from woolly.plan import Tracer


@dataclass(frozen=True, eq=False, kw_only=True)
class VisionFamily:
    """Family of vision encoders: markers, image sizes, preprocessing, plan and layout."""

    name: str  # `clip.projector_type`

    # Text around the embeddings of an image, as in the model's processor, and placeholders in chat templates, longest
    # first, which include this text.
    begin: str = ""
    end: str = ""
    placeholder_texts: tuple[str, ...]
    # Returns text and placeholders between begin and end; the argument is the number of images before this one.
    parts: Callable[[ProcessedItem, VisionSettings, int], list[str | Placeholder]] = all_inputs
    is_bidirectional: bool = False  # bidirectional attention within an image
    has_mrope: bool = False  # M-RoPE positions

    merge_size: int = 1  # patches per side of a row, if not in the file
    merge_key: str = "projector.scale_factor"
    temporal_patch_size: int = 1  # frames per patch of a video
    min_image_size: int = 1  # 0: files have no trained size
    # Corrects the settings read from a file; the mapping has its metadata.
    read: Callable[[VisionSettings, Mapping[str, Any]], VisionSettings] = lambda settings, metadata: settings

    # Returns the input sizes of an image of this height and width; raises RequestError for an unsupported size.
    choose_tiling: Callable[[int, int, VisionSettings], Tiling]
    process: Callable[[Image, VisionSettings], ProcessedItem] = process_single
    video: Callable[[VisionSettings], VideoSampling] | None = None
    positions_per_second: int = 0  # M-RoPE time positions of a video; 0: frames are counted

    # An encoder has a single plan (`build`) or several (`stages`).
    has_layers: bool = True  # False: files have 0 layers and heads
    build: Callable[[Tracer, TowerParams], None] | None = None
    stages: Callable[[TowerParams], tuple[StageBuilder, ...]] | None = None
    # Returns the layout of each plan for a grid of patches; raises ValueError for an unsupported grid.
    patch_layout: Callable[[TowerParams, Grid], PatchLayout | tuple[PatchLayout, ...]]
    max_patches: Callable[[TowerParams], int] | None = None  # of the largest image; None: from the maximum pixels
    transposed: tuple[str, ...] = ()  # matrices that files store with a row per input column
    remake: Callable[[TowerParams], dict[str, Tensor]] | None = None  # derives tensors
    # Constant prompt rows, placed after the rows of every input: tensors of the file, or computed.
    constant_names: tuple[str, ...] = ()
    constants: Callable[[TowerParams], npt.NDArray[np.float32]] | None = None


def _no_clips(*_: Any) -> Any:
    raise ValueError("the encoder of a speech-to-text model reads no audio of a prompt")


@dataclass(frozen=True, eq=False, kw_only=True)
class AudioFamily:
    """Family of audio encoders: markers, chunks of a spectrogram, plan and layout.

    Speech-to-text models have an encoder without markers; their transcribers compute the chunks.
    """

    name: str  # `clip.projector_type`

    # As in VisionFamily.
    begin: str = ""
    end: str = ""
    placeholder_texts: tuple[str, ...] = ()
    parts: Callable[[ProcessedItem, AudioSettings], list[str | Placeholder]] = all_chunks

    frame_size: int = 0  # samples of a frame, for projectors without encoder; 0: frames of a spectrogram
    needs_stack: bool = False  # the file needs projector.stack_factor
    needs_window: bool = False  # the file needs projector.window_size and projector.downsample_rate

    max_frames: int = 3000  # frames per chunk; mel frames: 30 s
    rows: Callable[[int, AudioSettings], int]  # maps frames of a chunk to rows
    # Returns the chunks of an audio clip, [frames, values] each, and their numbers of frames for a number of samples.
    chunks: Callable[[Audio, AudioSettings], Iterable[npt.NDArray[np.float32]]] = _no_clips
    chunk_frames: Callable[[int, AudioSettings], list[int]] = _no_clips

    stages: Callable[[AudioParams], tuple[StageBuilder, ...]]
    patch_layout: Callable[[AudioParams, Grid], tuple[PatchLayout, ...]]
    remake: Callable[[AudioParams], dict[str, Tensor]] | None = None
    constants: Callable[[AudioParams], npt.NDArray[np.float32]] | None = None
