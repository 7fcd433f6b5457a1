"""Conversion of safetensors checkpoints to GGUF files."""

from woolly.convert.checkpoint import Checkpoint, is_checkpoint, open_checkpoint
from woolly.convert.conversion_plan import ConversionPlan, plan_conversion
from woolly.convert.write_gguf import Written, choose_types, write_draft

__all__ = [
    "Checkpoint",
    "ConversionPlan",
    "Written",
    "choose_types",
    "is_checkpoint",
    "open_checkpoint",
    "plan_conversion",
    "write_draft",
]
