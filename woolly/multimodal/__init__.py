"""IMAGES AND AUDIO: images and audio as neutral data, from a caller's file to rows of a prompt.

An image or an audio clip is decoded, prepared for a tower (`Prepared`: pieces of patches, or of frames), and laid out
(`Layout`: marks and rows, in the order of the prompt). The engine runs the tower on the pieces and puts its rows among
the tokens.
"""

from typing import TYPE_CHECKING

from woolly.later import later

if TYPE_CHECKING:
    from woolly.multimodal.audio import Audio, read_audio
    from woolly.multimodal.audio.settings import AUDIO_PROJECTORS, AudioProjector, AudioSettings
    from woolly.multimodal.image import Image, read_image
    from woolly.multimodal.inputs import AudioInput, FileInput, ImageInput, VideoInput
    from woolly.multimodal.layout import Layout, Placeholder, Prompt, encode_prompt, lay_out
    from woolly.multimodal.pdf import Page, is_pdf
    from woolly.multimodal.prepared import Kind, Piece, Prepared
    from woolly.multimodal.processing import measure, prepare
    from woolly.multimodal.processing.audio import measure_audio, prepare_audio
    from woolly.multimodal.processing.video import measure_frames, prepare_clip, prepare_frame
    from woolly.multimodal.projector import ProjectorSettings, read_projector
    from woolly.multimodal.video import Clip, Frame, is_video
    from woolly.multimodal.vision_settings import (
        MAX_PATCHES,
        VISION_PROJECTORS,
        VisionProjector,
        VisionSettings,
        read_vision_settings,
    )

__all__ = [
    "AUDIO_PROJECTORS",
    "MAX_PAGES",
    "MAX_PATCHES",
    "VISION_PROJECTORS",
    "Audio",
    "AudioInput",
    "AudioProjector",
    "AudioSettings",
    "Clip",
    "FileInput",
    "Frame",
    "Image",
    "ImageInput",
    "Kind",
    "Layout",
    "Page",
    "Piece",
    "Placeholder",
    "Prepared",
    "ProjectorSettings",
    "Prompt",
    "VideoInput",
    "VisionProjector",
    "VisionSettings",
    "encode_prompt",
    "is_pdf",
    "is_video",
    "lay_out",
    "measure",
    "measure_audio",
    "measure_frames",
    "prepare",
    "prepare_audio",
    "prepare_clip",
    "prepare_frame",
    "read_audio",
    "read_image",
    "read_projector",
    "read_vision_settings",
]

MAX_PAGES = 50  # of the PDF files of a conversation, unless the caller says otherwise

__getattr__ = later(
    __name__,
    {
        "audio.settings": "AUDIO_PROJECTORS AudioProjector AudioSettings",
        "inputs": "AudioInput FileInput ImageInput VideoInput",
        "projector": "ProjectorSettings read_projector",
        "layout": "Layout Placeholder Prompt encode_prompt lay_out",
        "pdf": "Page is_pdf",
        "image": "Image read_image",
        "prepared": "Kind Piece Prepared",
        "processing": "measure prepare",
        "processing.audio": "measure_audio prepare_audio",
        "processing.video": "measure_frames prepare_clip prepare_frame",
        "vision_settings": "MAX_PATCHES VISION_PROJECTORS VisionProjector VisionSettings read_vision_settings",
        "audio": "Audio read_audio",
        "video": "Clip Frame is_video",
    },
)
