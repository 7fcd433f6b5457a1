"""Special tokens and the chat template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from woolly.convert.checkpoint import Checkpoint
from woolly.convert.json_files import read_json
from woolly.errors import ModelError

_ROLES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",  # spelled like this in the format
    "pad_token": "padding_token_id",
    "mask_token": "mask_token_id",
}
_MORE_ENDS = ("eot_token_id", "eom_token_id")


def special_keys(checkpoint: Checkpoint, fast: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, Any]:
    """Return the keys of special tokens, from tokenizer_config.json and other files."""
    folder = checkpoint.folder
    settings = read_json(folder / "tokenizer_config.json", optional=True)
    listed = read_json(folder / "special_tokens_map.json", optional=True)
    generation = read_json(folder / "generation_config.json", optional=True)
    out: dict[str, Any] = {}
    for role, key in _ROLES.items():
        text = _text(settings.get(role)) or _text(listed.get(role))
        index = ids.get(text) if text is not None else None
        if index is None and role in ("bos_token", "eos_token", "pad_token"):
            named = _ids(generation, f"{role}_id", ids) or _ids(checkpoint.raw, f"{role}_id", ids)
            index = named[0] if named else None
        if index is not None:
            out[f"tokenizer.ggml.{key}"] = index
    ends = _ids(generation, "eos_token_id", ids) + _ids(checkpoint.raw, "eos_token_id", ids)
    end = out.get("tokenizer.ggml.eos_token_id")
    more = [index for index in dict.fromkeys(ends) if index != end]
    out |= {f"tokenizer.ggml.{key}": index for key, index in zip(_MORE_ENDS, more, strict=False)}
    out |= _ends(settings, fast, out)
    if (template := _template(checkpoint, settings)) is not None:
        out["tokenizer.chat_template"] = template
    return out


def _text(value: Any) -> str | None:
    """Return the text of a token, which is stored as a string or in an object."""
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else None


def _ids(values: Mapping[str, Any], key: str, ids: Mapping[str, int]) -> list[int]:
    """Return the id or ids of a setting. Ids beyond the vocabulary are dropped."""
    value = values.get(key)
    listed = value if isinstance(value, list) else [value]
    return [one for one in listed if type(one) is int and 0 <= one < len(ids)]


def _ends(settings: Mapping[str, Any], fast: Mapping[str, Any], roles: Mapping[str, Any]) -> dict[str, bool]:
    """Return flags to add BOS and EOS, from the settings or else from tokenizer.json's last post-processor."""
    out = {}
    for key, role in (("add_bos_token", "bos_token_id"), ("add_eos_token", "eos_token_id")):
        index = roles.get(f"tokenizer.ggml.{role}")
        value = settings.get(key)
        if isinstance(value, bool):
            out[f"tokenizer.ggml.{key}"] = value and index is not None
        elif fast:
            out[f"tokenizer.ggml.{key}"] = index is not None and index in _added_around(fast, key == "add_bos_token")
    return out


def _added_around(fast: Mapping[str, Any], at_start: bool) -> list[int]:
    """Return the ids that the post-processor adds before or after a text."""
    step = fast.get("post_processor")
    steps = step.get("processors", [step]) if isinstance(step, dict) else []
    for one in steps if isinstance(steps, list) else []:
        if not isinstance(one, dict):
            continue
        if one.get("type") == "TemplateProcessing" and isinstance(items := one.get("single"), list):
            kinds = [next(iter(item), "") if isinstance(item, dict) else "" for item in items]
            text = kinds.index("Sequence") if "Sequence" in kinds else len(kinds)
            chosen = items[:text] if at_start else items[text + 1 :]
            names = [item["SpecialToken"].get("id") for item in chosen if isinstance(item.get("SpecialToken"), dict)]
            known = one.get("special_tokens")
            known = known if isinstance(known, dict) else {}
            return [i for name in names for i in (known.get(name) or {}).get("ids", []) if type(i) is int]
        if one.get("type") in ("BertProcessing", "RobertaProcessing"):
            pair = one.get("cls" if at_start else "sep")
            return [pair[1]] if isinstance(pair, list) and len(pair) == 2 and type(pair[1]) is int else []
    return []


def _template(checkpoint: Checkpoint, settings: Mapping[str, Any]) -> str | None:
    """Return the chat template: from a separate file, else from the settings (if there are several, the default)."""
    path = checkpoint.folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"{path}: cannot read the file ({error})") from None
    value = settings.get("chat_template")
    if value is None:
        value = read_json(checkpoint.folder / "chat_template.json", optional=True).get("chat_template")
    if isinstance(value, list):
        named = {one.get("name"): one.get("template") for one in value if isinstance(one, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None
