"""Errors for unknown keyword arguments, with suggestions."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Collection, Iterable
from typing import Any, TypeVar

from woolly.errors import KeywordError

Class = TypeVar("Class", bound=type)

# Parameter names in other programs, by Woolly's name.
_NAMES = {
    "model": "model_path model_name model_id model_name_or_path repo_id",
    "max_tokens": "max_new_tokens max_completion_tokens n_predict num_predict max_length",
    "min_tokens": "min_new_tokens",
    "temperature": "temp",
    "typical_p": "typ_p typical",
    "repeat_penalty": "repetition_penalty",
    "repeat_last_n": "repetition_penalty_range penalty_last_n",
    "mirostat": "mirostat_mode",
    "stop": "stop_sequences stop_strings",
    "seed": "random_seed",
    "n": "num_return_sequences best_of",
    "n_keep": "num_keep",
    "logprobs": "top_logprobs n_probs",
    "schema": "response_format response_model format guided_json",
    "json_schema": "schema response_format response_model format guided_json",
    "regex": "guided_regex",
    "choice": "guided_choice",
    "grammar": "guided_grammar",
    "ctx": "n_ctx num_ctx ctx_size max_model_len max_seq_len context_length",
    "threads": "n_threads num_threads num_thread",
    "chunk": "n_batch num_batch batch_size max_num_batched_tokens",
    "max_running": "max_num_seqs n_parallel parallel",
    "kv_type": "type_k type_v cache_type_k kv_cache_dtype",
    "speculation": "draft_model",
    "tools": "functions",
    "tool_choice": "function_call",
    "variables": "chat_template_kwargs template_kwargs enable_thinking",
    "continue_final": "continue_final_message prefill",
}
PEER_NAMES = {(ours, theirs) for ours, names in _NAMES.items() for theirs in names.split()}

_MAX_LISTED = 32


def closest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the closest known name, or None if none is similar."""
    names = list(known)
    by_peers = next((ours for ours in names if (ours, name) in PEER_NAMES), None)
    return by_peers or next(iter(difflib.get_close_matches(name[:40], names, n=1, cutoff=0.7)), None)


def check_keywords(call: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise KeywordError for the first unknown argument of `call`."""
    for name in given:
        if name in known:
            continue
        if near := closest_name(name, known):
            remedy = f"did you mean {near}?"
        elif len(known) <= _MAX_LISTED:
            remedy = f"expected one of {', '.join(known)}"
        else:
            remedy = f"see help({call})"
        raise KeywordError(f"{call} got an unexpected argument {name[:40]!r}; {remedy}", field=name)


def suggest_names(cls: Class) -> Class:
    """Class decorator: raise KeywordError with a suggestion for unknown constructor arguments."""
    init = cls.__init__  # type: ignore[misc]
    known = list(inspect.signature(init).parameters)[1:]

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **options: Any) -> None:
        check_keywords(cls.__name__, options, known)
        init(self, *args, **options)

    cls.__init__ = checked  # type: ignore[misc]
    return cls
