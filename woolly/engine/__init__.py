"""Engine: schedules and batches requests, runs the model and samples tokens."""

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
    from woolly.engine.engine import Engine
    from woolly.engine.loading.context_length import affordable_ctx, context_limit, default_ctx, possible_ctx
    from woolly.engine.loading.draft_files import describe_draft, has_block, is_draft_file
    from woolly.engine.loading.hooks import Hook
    from woolly.engine.loading.load import (
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
    from woolly.engine.threads.stream import ChunkStream, Stream

__all__ = [
    "AssistantProposer",
    "Chunk",
    "ChunkStream",
    "Completion",
    "DFlashProposer",
    "DraftModelProposer",
    "Engine",
    "EngineDriver",
    "FinishReason",
    "Hook",
    "LoadedModel",
    "MtpLookupProposer",
    "MtpProposer",
    "PromptLookupProposer",
    "Proposer",
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

__getattr__ = lazy_getattr(
    __name__,
    {
        "drafts.gemma4_assistant": "AssistantProposer",
        "drafts.dflash": "DFlashProposer",
        "drafts.proposer": "Proposer",
        "drafts.prompt_lookup": "PromptLookupProposer",
        "drafts.draft_model": "DraftModelProposer check_vocabulary",
        "drafts.mtp": "MtpProposer",
        "drafts.mtp_prompt_lookup": "MtpLookupProposer",
        "engine": "Engine",
        "loading.context_length": "affordable_ctx context_limit default_ctx possible_ctx",
        "loading.draft_files": "describe_draft has_block is_draft_file",
        "loading.hooks": "Hook",
        "loading.load": "LoadedModel default_batch_size default_kv_tokens default_snapshots load_model",
        "request": "FinishReason Request",
        "request_options": "RequestOptions",
        "threads.completion": "Chunk Completion Score",
        "threads.driver": "EngineDriver",
        "threads.stream": "ChunkStream Stream",
    },
)
