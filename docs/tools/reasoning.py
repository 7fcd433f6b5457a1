"""Tables of docs/use/http-api.md: reasoning in the terms of each API, and the template variables of each family."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from woolly.chat.reasoning import EFFORTS
from woolly.chat.reasoning_switches import EFFORT_SWITCHES, SWITCHES, ReasoningSwitch
from woolly.serving.dialects.reasoning_terms import TERMS


def terms() -> str:
    """Return the table of the fields of each API."""
    rows = ["| API | off | on | effort | budget | without them |", "|---|---|---|---|---|---|"]
    for each in TERMS:
        cells = [_listed(each.off), _listed(each.on), _listed(each.low), _listed(each.budget)]
        missing = "off" if each.missing.effort else "the model's default"
        rows.append(f"| {each.api} | {' | '.join(cells)} | {missing} |")
    return "\n".join(rows)


def variables() -> str:
    """Return the table of template variables."""
    rows = ["| template variable | on | off | efforts |", "|---|---|---|---|"]
    for switch in SWITCHES:
        on, off = _value(switch.on, "budget" if switch.takes_budget else "not set"), _value(switch.off, "")
        rows.append(f"| `{switch.name}` | {on} | {off} | {_limits()} |")
    for switch in EFFORT_SWITCHES:
        off = "the template's word, such as `no_think`"
        rows.append(f"| `{switch.name}` | not set | {off} | {_levels(switch)} |")
    return "\n".join(rows)


def _levels(switch: ReasoningSwitch) -> str:
    return f"{', '.join(switch.levels)}, and those that the template mentions"


def _limits() -> str:
    return ", ".join(f"{effort}: {limit:,} tokens" for effort, limit in EFFORTS.items() if limit is not None)


def _value(value: Any, missing: str) -> str:
    return missing if value is None else f"`{json.dumps(value)}`"


def _listed(examples: Iterable[Mapping[str, Any]]) -> str:
    return "<br>".join(f"`{json.dumps(example)[1:-1]}`" for example in examples) or "·"
