"""Unknown fields of a body: renamed, rejected or ignored.

A synonym of a known field is renamed. A field that would change the answer in
another server is rejected, with the right name. All others have no effect, which the header x-woolly-ignored
and the log report. A value of null, false or nothing asks for nothing, unless the name looks misspelt.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from woolly.serving.errors import invalid_param
from woolly.serving.observability.logs import ignore

# Tokens that a model may think: llama-server's and vLLM's names.
_BUDGETS = ("thinking_budget_tokens", "reasoning_budget_tokens", "thinking_token_budget")

# Names of vLLM, llama-server, Ollama, Hugging Face and Ole, and ours.
_RENAMED = {
    "repetition_penalty": "repeat_penalty",
    "n_predict": "max_tokens",
    "num_predict": "max_tokens",
    "max_new_tokens": "max_tokens",
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "stop_sequences": "stop",
    "typical": "typical_p",
    "max_tokens": "max_output_tokens",
    **dict.fromkeys(_BUDGETS, "reasoning_budget"),
}

_STRUCTURES = ("structured_outputs", "guided_json")

_CHATS = "it belongs to conversations: POST /v1/chat/completions"
_BEAMS = "beams are not searched here; leave it out"


_REJECTED = {
    "structured_outputs": "{'json' | 'regex' | 'choice' | 'grammar': ...} was expected, with one of them",
    "format": "use response_format or json_schema",
    "options": "send its fields beside the others, such as temperature, top_k or max_tokens",
    "num_ctx": "the operator sets the context by --ctx-size; leave it out",
    "system": "send a message of the role system",
    "template": "the model's own template is used; leave it out",
    "chat_template": "the operator sets the template by --chat-template; leave it out",
    "images": "only text is supported; leave it out",
    "input": "use messages, or prompt",
    "instructions": "send a message of the role system",
    "enable_thinking": "use reasoning_effort, or send it in chat_template_kwargs",
    "thinking": "use reasoning_effort",
    "reasoning": "use reasoning_effort",
    "documents": "send them as text in a message",
    "use_beam_search": _BEAMS,
    "num_beams": _BEAMS,
    "length_penalty": _BEAMS,
    "best_of": "the best of several answers is not chosen here; ask for them with n",
    "bad_words": "use logit_bias",
    "allowed_token_ids": "use logit_bias, or grammar",
    "truncate_prompt_tokens": "prompts are not truncated; shorten it",
    "suffix": "use POST /v1/completions or /infill",
    "lora": "llama-server's own routes take it; leave it out",
    "adapter": "the operator opens adapters by --lora, and llama-server's own routes take their scales as lora",
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
    """Return True if a value is null, false or empty. 0 is a value: a temperature of 0 has a meaning."""
    return value is None or value is False or value in ("", [], {})


def body_fields(annotation: Any) -> frozenset[str]:
    """Return the names under which a body takes its fields; empty if the annotation is not a body."""
    kinds = (annotation, *getattr(annotation, "__args__", ()))
    found: set[str] = set()
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found |= {field.alias or name for name, field in kind.model_fields.items()}
    return frozenset(found)


def resolve_unknown_fields(body: Any, problems: Sequence[Mapping[str, Any]], known: Collection[str]) -> bool:
    """Rename or remove unknown fields of a body in place; return True if it should be validated again.

    `problems` are pydantic's, `known` the names of the body's fields. ApiError 400 for a field that would change the
    answer. Other problems come first: a client that leaves out `messages` is not helped by a word about `prompt`.
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
            raise invalid_param(name, f"it means the same as {ours}; send one of them")
        if not (ours == "max_tokens" and isinstance(value, int) and value < 0):  # llama-server's word for no limit
            body[ours] = value
    elif name in _REJECTED:
        raise invalid_param(name, _REJECTED[name])
    else:
        ignore(f"{name} (did you mean {near[0]}?)" if near else name)


def _structure(name: str, value: Any, known: Collection[str]) -> tuple[str, Any]:
    """Return the one structure that vLLM's field asks for, under vLLM's older name for it.

    A schema may come as JSON text.
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
    if name == "guided_json" and isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise invalid_param(name, "a JSON schema was expected, as an object or as its text") from None
    return name, value


def _holders(body: dict[str, Any], place: Sequence[int | str]) -> Iterable[dict[str, Any]]:
    """Yield the objects that have the field at a place; at a number, those of the whole list.

    pydantic adds the name of a member of a union to the place, which is no key.
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
