"""Handling of unknown body fields: rename, reject or ignore.

Synonyms of known fields are renamed. Fields that would change the answer on other servers are rejected with the name to
use instead. All other unknown fields are ignored, and reported in the header x-woolly-ignored and the log. Null, false
and empty values are dropped silently, unless the name looks like a typo.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from woolly.serving.errors import invalid_param
from woolly.serving.observability.logs import ignore

# Names of llama-server and vLLM for the token limit of reasoning.
_BUDGETS = ("thinking_budget_tokens", "reasoning_budget_tokens", "thinking_token_budget")

# Synonyms used by vLLM, llama-server, Ollama, Hugging Face, Ole and this server.
_RENAMED = {
    "repetition_penalty": "repeat_penalty",
    "n_predict": "max_tokens",
    "num_predict": "max_tokens",
    "max_new_tokens": "max_tokens",
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "ebnf": "grammar",  # SGLang
    "guided_lark": "lark",
    "stop_sequences": "stop",
    "typical": "typical_p",
    "max_tokens": "max_output_tokens",
    **dict.fromkeys(_BUDGETS, "reasoning_budget"),
}

_STRUCTURES = ("structured_outputs", "guided_json", "guided_grammar")

_CHATS = "only chats support it; use POST /v1/chat/completions"
_BEAMS = "beam search is not supported; remove it"


_REJECTED = {
    "structured_outputs": "expected an object with one of: json, regex, choice, grammar",
    "format": "use response_format or json_schema",
    "options": "send its fields at the top level, such as temperature, top_k or max_tokens",
    "num_ctx": "the context size is set by --ctx-size; remove it",
    "system": "send a message with role system",
    "template": "only the template of the model's file is supported; remove this field",
    "chat_template": "the template is set by --chat-template; remove it",
    "images": "only text is supported; remove it",
    "input": "use messages, or prompt",
    "instructions": "send a message with role system",
    "enable_thinking": "use reasoning_effort, or send it in chat_template_kwargs",
    "thinking": "use reasoning_effort",
    "reasoning": "use reasoning_effort",
    "documents": "send them as text in a message",
    "use_beam_search": _BEAMS,
    "num_beams": _BEAMS,
    "length_penalty": _BEAMS,
    "best_of": "ranking answers is not supported; request several answers with n",
    "bad_words": "use logit_bias",
    "allowed_token_ids": "use logit_bias, or grammar",
    "truncate_prompt_tokens": "prompts are not truncated; shorten the prompt",
    "suffix": "use POST /v1/completions or /infill",
    "lora": "only llama-server's own routes support it; remove it",
    "adapter": "adapters are loaded with --lora; set their scales with lora on llama-server's own routes",
    "prompt": "use messages, or POST /v1/completions",
    "messages": _CHATS,
    "tools": _CHATS,
    "tool_choice": _CHATS,
    "response_format": "use json_schema, or POST /v1/chat/completions",
    "reasoning_effort": _CHATS,
    "chat_template_kwargs": _CHATS,
    "reasoning_budget": _CHATS,
    "reasoning_budget_message": _CHATS,
}


def _is_empty(value: Any) -> bool:
    """Return True for null, false and empty values. 0 is not empty, because a temperature of 0 is meaningful."""
    return value is None or value is False or value in ("", [], {})


def body_fields(annotation: Any) -> frozenset[str]:
    """Return the field names of a body, or an empty set if the annotation is not a body."""
    kinds = (annotation, *getattr(annotation, "__args__", ()))
    found: set[str] = set()
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found |= {field.alias or name for name, field in kind.model_fields.items()}
    return frozenset(found)


def resolve_unknown_fields(body: Any, problems: Sequence[Mapping[str, Any]], known: Collection[str]) -> bool:
    """Rename or remove unknown fields of a body in place; return True if the body should be validated again.

    `problems` are pydantic's errors and `known` the body's field names. Raises ApiError 400 for fields that would
    change the answer. If there are other problems, pydantic's errors are more helpful, so this function changes
    nothing.
    """
    if not isinstance(body, dict) or any(problem["type"] != "extra_forbidden" for problem in problems):
        return False
    for place in dict.fromkeys(tuple(problem["loc"][1:]) for problem in problems):
        if len(place) == 1:
            _resolve_one(body, str(place[0]), known)
        else:
            removed = [value for holder in _holders(body, place) for value in [holder.pop(place[-1], None)]]
            if not all(_is_empty(value) for value in removed):
                ignore(".".join(part for part in place if isinstance(part, str)))
    return True


def _resolve_one(body: dict[str, Any], name: str, known: Collection[str]) -> None:
    value = body.pop(name)
    if name in _STRUCTURES and not _is_empty(value):
        name, value = _structure(name, value, known)
    near = difflib.get_close_matches(name[:64], known, 1, 0.75)
    ours = _RENAMED.get(name, "")
    if _is_empty(value) and (not near or ours or name in _REJECTED):
        return
    if ours in known:
        if body.get(ours) not in (None, value):
            raise invalid_param(name, f"a synonym of {ours}; send only one of them")
        if not (ours == "max_tokens" and isinstance(value, int) and value < 0):  # -1 means no limit in llama-server
            body[ours] = value
    elif name in _REJECTED:
        raise invalid_param(name, _REJECTED[name])
    else:
        ignore(f"{name} (did you mean {near[0]}?)" if near else name)


def _structure(name: str, value: Any, known: Collection[str]) -> tuple[str, Any]:
    """Convert vLLM's structured output field to the older name and the value of its only structure.

    A schema may be a JSON string.
    """
    if name == "structured_outputs":
        given = {key: one for key, one in value.items() if not _is_empty(one)} if isinstance(value, dict) else {}
        kinds = [key for key in given if key in ("json", "json_object", "regex", "choice", "grammar")]
        if len(kinds) != 1 or "json_schema" not in known:
            return name, value
        for key in given.keys() - set(kinds):
            ignore(f"{name}.{key}")
        (kind,) = kinds
        name, value = (f"guided_{kind}", given[kind]) if kind != "json_object" else ("guided_json", {"type": "object"})
    if name == "guided_grammar" and isinstance(value, str) and "::=" not in value:
        return "guided_lark", value  # vLLM accepts both notations, and only GBNF defines rules with ::=
    if name == "guided_json" and isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise invalid_param(name, "expected a JSON schema, as an object or a string") from None
    return name, value


def _holders(body: dict[str, Any], place: Sequence[int | str]) -> Iterable[dict[str, Any]]:
    """Yield the objects with the field at a place; a list index selects all items of the list.

    Union members that pydantic adds to the place are not keys, and are skipped.
    """
    found: list[Any] = [body]
    for part in place[:-1]:
        inner: list[Any] = []
        for value in found:
            if isinstance(value, list) and isinstance(part, int):
                inner += value
            elif isinstance(value, dict) and part in value:
                inner.append(value[part])
            else:
                inner.append(value)
        found = inner
    return (value for value in found if isinstance(value, dict))
