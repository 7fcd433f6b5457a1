"""WHEN: the scheduler packs many requests into one step."""

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
    from woolly.engine.engine import Engine
    from woolly.engine.opening.context import affordable_ctx, context_limit, default_ctx, possible_ctx
    from woolly.engine.opening.draft_file import describe_draft, has_block, is_draft_file
    from woolly.engine.opening.hooks import Hook
    from woolly.engine.opening.load import (
        LoadedModel,
        default_batch_size,
        default_kv_tokens,
        default_snapshots,
        load_model,
    )
    from woolly.engine.request import FinishReason, Request
    from woolly.engine.request_options import RequestOptions
    from woolly.engine.threads.completion import Chunk, Completion, Score
    from woolly.engine.threads.driver import EngineDriver
    from woolly.engine.threads.stream import Stream

__all__ = [
    "AssistantDraft",
    "BlockDraft",
    "Chunk",
    "Completion",
    "Draft",
    "DraftModel",
    "Engine",
    "EngineDriver",
    "FinishReason",
    "Hook",
    "LoadedModel",
    "MtpDraft",
    "MtpLookup",
    "PromptLookup",
    "Request",
    "RequestOptions",
    "Score",
    "Stream",
    "affordable_ctx",
    "check_vocabulary",
    "context_limit",
    "default_batch_size",
    "default_ctx",
    "default_kv_tokens",
    "default_snapshots",
    "describe_draft",
    "has_block",
    "is_draft_file",
    "load_model",
    "possible_ctx",
]

__getattr__ = later(
    __name__,
    {
        "drafts.assistant": "AssistantDraft",
        "drafts.block": "BlockDraft",
        "drafts.draft": "Draft",
        "drafts.lookup": "PromptLookup",
        "drafts.model": "DraftModel check_vocabulary",
        "drafts.mtp": "MtpDraft",
        "drafts.mtp_lookup": "MtpLookup",
        "engine": "Engine",
        "opening.context": "affordable_ctx context_limit default_ctx possible_ctx",
        "opening.draft_file": "describe_draft has_block is_draft_file",
        "opening.hooks": "Hook",
        "opening.load": "LoadedModel default_batch_size default_kv_tokens default_snapshots load_model",
        "request": "FinishReason Request",
        "request_options": "RequestOptions",
        "threads.completion": "Chunk Completion Score",
        "threads.driver": "EngineDriver",
        "threads.stream": "Stream",
    },
)
