"""Coding agents supported by `woolly launch`, and their configuration for a server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_HOUR = 3_600_000  # milliseconds; a long prompt on a CPU takes minutes before the first token


@dataclass(frozen=True)
class Endpoint:
    """Server and model for an agent."""

    url: str  # without /v1
    model: str
    ctx: int
    key: str | None = None

    @property
    def any_key(self) -> str:
        """API key, or a placeholder for clients that require one."""
        return self.key or "woolly"


@dataclass(frozen=True)
class Setup:
    """Command, environment and files for one start of an agent. The files are removed when it exits."""

    environment: Mapping[str, str] = field(default_factory=dict)
    without: Sequence[str] = ()  # environment variables to remove, which would select another server
    arguments: Sequence[str] = ()  # before the user's arguments
    files: Mapping[Path, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Agent:
    """Program, installation hint, and tokens of the first turn (system prompt and tools)."""

    program: str
    install: str
    first_turn: int
    set_up: Callable[[Endpoint, Path], Setup]  # (server, folder for files)


def _claude(to: Endpoint, _: Path) -> Setup:
    names = ("MODEL", "DEFAULT_OPUS_MODEL", "DEFAULT_SONNET_MODEL", "DEFAULT_HAIKU_MODEL")
    return Setup(
        {
            "ANTHROPIC_BASE_URL": to.url,
            "ANTHROPIC_AUTH_TOKEN": to.any_key,
            **{f"ANTHROPIC_{name}": to.model for name in names},
            "CLAUDE_CODE_SUBAGENT_MODEL": to.model,
            # Otherwise the agent assumes a context of a million tokens and never compacts.
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(to.ctx),
            "CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(to.ctx),
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "API_TIMEOUT_MS": str(_HOUR),
        },
        without=("ANTHROPIC_API_KEY",),
    )


def _codex(to: Endpoint, _: Path) -> Setup:
    provider = {
        "name": "Woolly",
        "base_url": f"{to.url}/v1",
        "wire_api": "responses",
        "stream_idle_timeout_ms": _HOUR,
        **({"env_key": "WOOLLY_API_KEY"} if to.key else {}),
    }
    options = {
        "model": to.model,
        "model_provider": "woolly",
        "model_context_window": to.ctx,
        "web_search": "disabled",
        **{f"model_providers.woolly.{name}": value for name, value in provider.items()},
    }
    # These strings and numbers are the same in TOML and JSON.
    arguments = [part for name, value in options.items() for part in ("-c", f"{name}={json.dumps(value)}")]
    return Setup({"WOOLLY_API_KEY": to.key} if to.key else {}, arguments=arguments)


def _opencode(to: Endpoint, _: Path) -> Setup:
    config = {
        "provider": {
            "woolly": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "Woolly",
                "options": {"baseURL": f"{to.url}/v1", **({"apiKey": to.key} if to.key else {})},
                "models": {to.model: {"name": to.model, "limit": {"context": to.ctx, "output": to.ctx // 4}}},
            }
        },
        "model": f"woolly/{to.model}",
        "small_model": f"woolly/{to.model}",
    }
    return Setup({"OPENCODE_CONFIG_CONTENT": json.dumps(config), "OPENCODE_DISABLE_MODELS_FETCH": "1"})


def _qwen(to: Endpoint, _: Path) -> Setup:
    return Setup(
        {"OPENAI_BASE_URL": f"{to.url}/v1", "OPENAI_API_KEY": to.any_key, "OPENAI_MODEL": to.model},
        arguments=("--auth-type", "openai"),
    )


def _cline(to: Endpoint, folder: Path) -> Setup:
    settings = {"provider": "ollama", "model": to.model, "baseUrl": f"{to.url}/v1"}
    if to.key:
        settings["apiKey"] = to.key
    provider = {"tokenSource": "manual", "updatedAt": "2026-01-01T00:00:00Z", "settings": settings}
    providers = {"version": 1, "lastUsedProvider": "ollama", "providers": {"ollama": provider}}
    return Setup(
        arguments=("--data-dir", str(folder), "--provider", "ollama", "--model", to.model),
        files={folder / "settings" / "providers.json": json.dumps(providers, indent=2)},
    )


def _copilot(to: Endpoint, _: Path) -> Setup:
    environment = {
        "COPILOT_PROVIDER_BASE_URL": f"{to.url}/v1",
        "COPILOT_PROVIDER_WIRE_API": "responses",
        "COPILOT_MODEL": to.model,
        "COPILOT_OFFLINE": "true",
    }
    return Setup(environment | ({"COPILOT_PROVIDER_API_KEY": to.key} if to.key else {}))


def _continue(to: Endpoint, folder: Path) -> Setup:
    model = {
        "name": to.model,
        "provider": "openai",
        "model": to.model,
        "apiBase": f"{to.url}/v1",
        "apiKey": to.any_key,
        "roles": ["chat", "edit", "apply"],
        "capabilities": ["tool_use"],
        "contextLength": to.ctx,
    }
    config = {"name": "Woolly", "version": "1.0.0", "schema": "v1", "models": [model]}
    file = folder / "config.yaml"
    return Setup(arguments=("--config", str(file)), files={file: json.dumps(config, indent=2)})  # JSON is YAML


AGENTS = {
    "claude": Agent("claude", "npm install -g @anthropic-ai/claude-code", 12_000, _claude),
    "codex": Agent("codex", "npm install -g @openai/codex", 8_800, _codex),
    "opencode": Agent("opencode", "npm install -g opencode-ai", 7_600, _opencode),
    "qwen": Agent("qwen", "npm install -g @qwen-code/qwen-code", 18_600, _qwen),
    "cline": Agent("cline", "npm install -g cline", 5_600, _cline),
    "copilot": Agent("copilot", "npm install -g @github/copilot", 12_200, _copilot),
    "continue": Agent("cn", "npm install -g @continuedev/cli", 2_300, _continue),
}
