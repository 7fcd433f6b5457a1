"""WHEN: many requests, one step."""

from woolly.engine.completion import Chunk, Completion, Score
from woolly.engine.constraint import Constraint, Grammar, GrammarCompiler
from woolly.engine.draft import Draft, PromptLookup
from woolly.engine.draft_model import DraftModel, check_vocabulary
from woolly.engine.driver import Driver
from woolly.engine.engine import Engine
from woolly.engine.load import (
    LoadedModel,
    available_memory,
    context_limit,
    default_ctx,
    default_kv_tokens,
    load_model,
)
from woolly.engine.logprobs import TokenLogprob, log_probabilities
from woolly.engine.params import SamplingParams
from woolly.engine.prefix import PrefixReport, PrefixStats
from woolly.engine.progress import progress_bar
from woolly.engine.prompts import is_list_of_prompts, params_of_each
from woolly.engine.sampler import Choice, Sampler
from woolly.engine.sequence import FinishReason, Hook, Sequence
from woolly.engine.stream import Stream

__all__ = [
    "Choice",
    "Chunk",
    "Completion",
    "Constraint",
    "Draft",
    "DraftModel",
    "Driver",
    "Engine",
    "FinishReason",
    "Grammar",
    "GrammarCompiler",
    "Hook",
    "LoadedModel",
    "PrefixReport",
    "PrefixStats",
    "PromptLookup",
    "Sampler",
    "SamplingParams",
    "Score",
    "Sequence",
    "Stream",
    "TokenLogprob",
    "available_memory",
    "check_vocabulary",
    "context_limit",
    "default_ctx",
    "default_kv_tokens",
    "is_list_of_prompts",
    "load_model",
    "log_probabilities",
    "params_of_each",
    "progress_bar",
]
