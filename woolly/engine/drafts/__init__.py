"""Speculation: proposals for the next tokens."""

from typing import TYPE_CHECKING

from woolly.later import later

if TYPE_CHECKING:
    from woolly.engine.drafts.assistant import AssistantDraft
    from woolly.engine.drafts.block import BlockDraft
    from woolly.engine.drafts.draft import Draft
    from woolly.engine.drafts.lookup import PromptLookup
    from woolly.engine.drafts.model import DraftModel, check_vocabulary
    from woolly.engine.drafts.mtp import MtpDraft
    from woolly.engine.drafts.mtp_lookup import MtpLookup

__all__ = [
    "AssistantDraft",
    "BlockDraft",
    "Draft",
    "DraftModel",
    "MtpDraft",
    "MtpLookup",
    "PromptLookup",
    "check_vocabulary",
]

__getattr__ = later(
    __name__,
    {
        "assistant": "AssistantDraft",
        "block": "BlockDraft",
        "draft": "Draft",
        "lookup": "PromptLookup",
        "model": "DraftModel check_vocabulary",
        "mtp": "MtpDraft",
        "mtp_lookup": "MtpLookup",
    },
)
