"""IMAGES AND AUDIO: pictures and sound as neutral data, from a caller's file to rows of a prompt.

A picture or a sound is decoded, prepared for a tower (`Prepared`: pieces of patches, or of frames), and laid out
(`Layout`: marks and rows, in the order of the prompt). The engine runs the tower on the pieces and puts its rows among
the tokens.
"""

from typing import TYPE_CHECKING

from woolly.later import later

if TYPE_CHECKING:
    from woolly.multimodal.audio import Sound, read_sound
    from woolly.multimodal.audio.settings import AUDIO_PROJECTORS, AudioProjector, AudioSettings
    from woolly.multimodal.given import GivenFile, GivenPicture, GivenSound, GivenVideo
    from woolly.multimodal.halves import Halves, read_halves
    from woolly.multimodal.layout import Layout, Placeholder, Prompt, encode_prompt, lay_out
    from woolly.multimodal.pdf import Page, is_pdf
    from woolly.multimodal.picture import Picture, read_picture
    from woolly.multimodal.prepared import Kind, Piece, Prepared
    from woolly.multimodal.processing import measure, prepare
    from woolly.multimodal.processing.audio import measure_sound, prepare_sound
    from woolly.multimodal.processing.video import measure_frames, prepare_clip, prepare_frame
    from woolly.multimodal.settings import MAX_PATCHES, PROJECTORS, Projector, TowerSettings, read_settings
    from woolly.multimodal.video import Clip, Frame, is_video

__all__ = [
    "AUDIO_PROJECTORS",
    "MAX_PAGES",
    "MAX_PATCHES",
    "PROJECTORS",
    "AudioProjector",
    "AudioSettings",
    "Clip",
    "Frame",
    "GivenFile",
    "GivenPicture",
    "GivenSound",
    "GivenVideo",
    "Halves",
    "Kind",
    "Layout",
    "Page",
    "Picture",
    "Piece",
    "Placeholder",
    "Prepared",
    "Projector",
    "Prompt",
    "Sound",
    "TowerSettings",
    "encode_prompt",
    "is_pdf",
    "is_video",
    "lay_out",
    "measure",
    "measure_frames",
    "measure_sound",
    "prepare",
    "prepare_clip",
    "prepare_frame",
    "prepare_sound",
    "read_halves",
    "read_picture",
    "read_settings",
    "read_sound",
]

MAX_PAGES = 50  # of the PDF files of a conversation, unless the caller says otherwise

__getattr__ = later(
    __name__,
    {
        "audio.settings": "AUDIO_PROJECTORS AudioProjector AudioSettings",
        "given": "GivenFile GivenPicture GivenSound GivenVideo",
        "halves": "Halves read_halves",
        "layout": "Layout Placeholder Prompt encode_prompt lay_out",
        "pdf": "Page is_pdf",
        "picture": "Picture read_picture",
        "prepared": "Kind Piece Prepared",
        "processing": "measure prepare",
        "processing.audio": "measure_sound prepare_sound",
        "processing.video": "measure_frames prepare_clip prepare_frame",
        "settings": "MAX_PATCHES PROJECTORS Projector TowerSettings read_settings",
        "audio": "Sound read_sound",
        "video": "Clip Frame is_video",
    },
)
