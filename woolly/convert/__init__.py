"""CONVERSION: safetensors checkpoints to GGUF files."""

from woolly.convert.checkpoint import Checkpoint, is_checkpoint, open_checkpoint
from woolly.convert.draft import FileDraft, make_draft
from woolly.convert.files import Written, choose_types, write_draft

__all__ = [
    "Checkpoint",
    "FileDraft",
    "Written",
    "choose_types",
    "is_checkpoint",
    "make_draft",
    "open_checkpoint",
    "write_draft",
]
