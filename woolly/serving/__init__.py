"""HTTP: one engine, spoken to in OpenAI's, Ole's and llama-server's words."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from woolly.serving.answers.generation import Generation, Generator
    from woolly.serving.answers.running import Running
    from woolly.serving.errors import ApiError
    from woolly.serving.life.app import create_app
    from woolly.serving.loading.library import ModelInfo
    from woolly.serving.loading.manager import ModelManager
    from woolly.serving.settings.configuration import read_settings
    from woolly.serving.settings.table import Settings

__all__ = [
    "ApiError",
    "Generation",
    "Generator",
    "ModelInfo",
    "ModelManager",
    "Running",
    "Settings",
    "create_app",
    "read_settings",
]

# Imported when first asked for: the command line reads the settings without FastAPI.
_LAZY = {
    "ApiError": "errors",
    "Generation": "answers.generation",
    "Generator": "answers.generation",
    "ModelInfo": "loading.manager",
    "ModelManager": "loading.manager",
    "Running": "answers.generation",
    "Settings": "settings.table",
    "create_app": "life.app",
    "read_settings": "settings.configuration",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'woolly.serving' has no attribute {name!r}")
    return getattr(import_module(f"woolly.serving.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
