"""WHAT IS SEEN AND HEARD: pictures and sound as neutral data, from a caller's file to rows of a prompt.

A picture or a sound is decoded, prepared for a tower (`Prepared`: pieces of patches, or of frames), and laid out
(`Layout`: marks and rows, in the order of the prompt). The engine runs the tower on the pieces and puts its rows among
the tokens.
"""

from woolly.senses.ears import LISTENERS, EarSettings, Listener
from woolly.senses.halves import Halves, read_halves
from woolly.senses.layout import Layout, Prompt, Rows, encode_prompt, lay_out
from woolly.senses.picture import Picture, read_picture
from woolly.senses.prepared import Kind, Piece, Prepared
from woolly.senses.settings import MOST_PATCHES, PROJECTORS, Projector, TowerSettings, read_settings
from woolly.senses.sounds import Sound, read_sound

__all__ = [
    "LISTENERS",
    "MOST_PATCHES",
    "PROJECTORS",
    "EarSettings",
    "Halves",
    "Kind",
    "Layout",
    "Listener",
    "Picture",
    "Piece",
    "Prepared",
    "Projector",
    "Prompt",
    "Rows",
    "Sound",
    "TowerSettings",
    "encode_prompt",
    "lay_out",
    "read_halves",
    "read_picture",
    "read_settings",
    "read_sound",
]
