"""Model names that clients have built in: models of cloud providers, and placeholders."""

from __future__ import annotations

import re

# Names of open models (gpt-oss, deepseek-r1, command-r) are not listed: a user who types one wants this model.
_CLOUD = re.compile(
    r"gpt-(?!oss|j|neo|2|4all)[a-z0-9].*|chatgpt-.+|o[1-9](-.+)?|codex-mini.*|computer-use-preview.*"  # OpenAI
    r"|text-embedding-(3-.+|ada-.+|00\d.*|gecko.*)|(text-)?(ada|babbage|curie|davinci)(-.+)?|whisper-1"
    r"|claude-.+|(sonnet|opus|haiku)(-.+)?"  # Anthropic
    r"|gemini-.+|embedding-001"  # Google
    r"|embed-(english|multilingual|v\d).*|rerank-(english|multilingual|v\d).*|voyage-.+"  # Cohere, Voyage
    r"|mistral-(large|medium|small|tiny)-latest|(codestral|pixtral-large|magistral-[a-z]+)-latest|mistral-embed"
    r"|deepseek-(chat|reasoner)|grok-.+|qwen-(max|plus|turbo|flash).*|qwen3-coder-(plus|flash)|coder-model"
    r"|default|default[-_]model|local[-_]model|model"  # placeholders of client settings
)


def is_cloud_name(name: str) -> bool:
    """True for a name that clients have built in, also with the provider: `openai/gpt-4o`, `models/gemini-2.5-pro`."""
    return _CLOUD.fullmatch(name.lower().removesuffix(":latest").rpartition("/")[2]) is not None
