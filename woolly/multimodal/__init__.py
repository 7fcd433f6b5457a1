"""Images and audio: decoding, preprocessing and placement in the prompt.

An image or audio clip is decoded, processed into encoder inputs (`ProcessedItem`) and replaced in the prompt by text
and placeholders (`PromptReplacement`). The engine runs the encoder and injects its output at the placeholders.
"""

from typing import TYPE_CHECKING

from woolly.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from woolly.multimodal.audio import Audio, read_audio
    from woolly.multimodal.audio.settings import AudioSettings
    from woolly.multimodal.family import AudioFamily, VisionFamily
    from woolly.multimodal.image import Image, read_image
    from woolly.multimodal.inputs import AudioInput, FileInput, ImageInput, VideoInput
    from woolly.multimodal.pdf import Page, is_pdf
    from woolly.multimodal.processed_item import EncoderInput, Modality, ProcessedItem
    from woolly.multimodal.processing import image_placeholders, process_image
    from woolly.multimodal.processing.audio import audio_placeholders, process_audio
    from woolly.multimodal.processing.video import count_frame_rows, process_clip, process_frame
    from woolly.multimodal.projector import ProjectorSettings, read_projector
    from woolly.multimodal.prompt_replacement import (
        Placeholder,
        Prompt,
        PromptReplacement,
        encode_prompt,
        make_replacement,
    )
    from woolly.multimodal.registry import audio_families, vision_families
    from woolly.multimodal.video import Clip, Frame, is_video
    from woolly.multimodal.vision_settings import (
        MAX_PATCHES,
        VisionSettings,
        read_vision_settings,
    )

__all__ = [
    "MAX_PAGES",
    "MAX_PATCHES",
    "Audio",
    "AudioFamily",
    "AudioInput",
    "AudioSettings",
    "Clip",
    "EncoderInput",
    "FileInput",
    "Frame",
    "Image",
    "ImageInput",
    "Modality",
    "Page",
    "Placeholder",
    "ProcessedItem",
    "ProjectorSettings",
    "Prompt",
    "PromptReplacement",
    "VideoInput",
    "VisionFamily",
    "VisionSettings",
    "audio_families",
    "audio_placeholders",
    "count_frame_rows",
    "encode_prompt",
    "image_placeholders",
    "is_pdf",
    "is_video",
    "make_replacement",
    "process_audio",
    "process_clip",
    "process_frame",
    "process_image",
    "read_audio",
    "read_image",
    "read_projector",
    "read_vision_settings",
    "vision_families",
]

MAX_PAGES = 50  # default maximum of PDF pages per conversation

__getattr__ = lazy_getattr(
    __name__,
    {
        "audio.settings": "AudioSettings",
        "family": "AudioFamily VisionFamily",
        "registry": "audio_families vision_families",
        "inputs": "AudioInput FileInput ImageInput VideoInput",
        "projector": "ProjectorSettings read_projector",
        "prompt_replacement": "Placeholder Prompt PromptReplacement encode_prompt make_replacement",
        "pdf": "Page is_pdf",
        "image": "Image read_image",
        "processed_item": "EncoderInput Modality ProcessedItem",
        "processing": "image_placeholders process_image",
        "processing.audio": "audio_placeholders process_audio",
        "processing.video": "count_frame_rows process_clip process_frame",
        "vision_settings": "MAX_PATCHES VisionSettings read_vision_settings",
        "audio": "Audio read_audio",
        "video": "Clip Frame is_video",
    },
)
