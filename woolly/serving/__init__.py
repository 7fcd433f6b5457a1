"""HTTP server with the APIs of OpenAI, Anthropic, Google, Cohere, Ollama, LM Studio, llama-server and Ole."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from woolly.serving.errors import ApiError
    from woolly.serving.generation.generator import GenerationRequest, Generator
    from woolly.serving.generation.running_request import RunningRequest
    from woolly.serving.lifecycle.app import create_app
    from woolly.serving.model_manager.manager import ModelManager
    from woolly.serving.model_manager.model_info import ModelInfo
    from woolly.serving.settings.configuration import read_settings
    from woolly.serving.settings.table import Settings

__all__ = [
    "ApiError",
    "GenerationRequest",
    "Generator",
    "ModelInfo",
    "ModelManager",
    "RunningRequest",
    "Settings",
    "create_app",
    "read_settings",
]

# Imported on first access, so that the command line can read the settings without FastAPI.
_LAZY = {
    "ApiError": "errors",
    "GenerationRequest": "generation.generator",
    "Generator": "generation.generator",
    "ModelInfo": "model_manager.manager",
    "ModelManager": "model_manager.manager",
    "RunningRequest": "generation.generator",
    "Settings": "settings.table",
    "create_app": "lifecycle.app",
    "read_settings": "settings.configuration",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'woolly.serving' has no attribute {name!r}")
    return getattr(import_module(f"woolly.serving.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
