"""Speculative decoding: proposers of draft tokens."""

from typing import TYPE_CHECKING

from woolly.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from woolly.engine.drafts.dflash import DFlashProposer
    from woolly.engine.drafts.draft_model import DraftModelProposer, check_vocabulary
    from woolly.engine.drafts.gemma4_assistant import AssistantProposer
    from woolly.engine.drafts.mtp import MtpProposer
    from woolly.engine.drafts.mtp_prompt_lookup import MtpLookupProposer
    from woolly.engine.drafts.prompt_lookup import PromptLookupProposer
    from woolly.engine.drafts.proposer import Proposer

__all__ = [
    "AssistantProposer",
    "DFlashProposer",
    "DraftModelProposer",
    "MtpLookupProposer",
    "MtpProposer",
    "PromptLookupProposer",
    "Proposer",
    "check_vocabulary",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "gemma4_assistant": "AssistantProposer",
        "dflash": "DFlashProposer",
        "proposer": "Proposer",
        "prompt_lookup": "PromptLookupProposer",
        "draft_model": "DraftModelProposer check_vocabulary",
        "mtp": "MtpProposer",
        "mtp_prompt_lookup": "MtpLookupProposer",
    },
)
