"""Build backend of pyproject.toml: scikit-build-core, plus NVRTC if CUDA kernels are to be compiled.

NVRTC takes 90 MB, and most machines have no NVIDIA GPU, so it is not a fixed requirement in pyproject.toml. Archives of
Vulkan kernels that are older than native/gpu are excluded from the build: an installation has no sources to compare
with, and older kernels may take other arguments, which gives wrong numbers without an error.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import compile as compiling  # in this folder (backend-path)
from scikit_build_core import build as _build

NVRTC = (
    "nvidia-cuda-nvrtc-cu12>=12.9,<13; sys_platform == 'linux' "
    "and (platform_machine == 'x86_64' or platform_machine == 'aarch64')"
)

_ROOT = Path(__file__).resolve().parents[2]
_ARCHIVE = "woolly/runtime/vulkan/kernels.bin"
_Settings = dict[str, Any]


def build_sdist(folder: str, config_settings: _Settings | None = None) -> str:
    """Build the sdist and return its name."""
    return _build.build_sdist(folder, _checked(config_settings))


def build_wheel(folder: str, config_settings: _Settings | None = None, metadata_directory: str | None = None) -> str:
    """Build a wheel and return its name."""
    return _build.build_wheel(folder, _checked(config_settings), metadata_directory)


def build_editable(folder: str, config_settings: _Settings | None = None, metadata_directory: str | None = None) -> str:
    """Build the wheel of an editable install and return its name."""
    return _build.build_editable(folder, _checked(config_settings), metadata_directory)


def _checked(settings: _Settings | None) -> _Settings:
    """Return the build settings, without the archive of Vulkan kernels if it is outdated."""
    settings = dict(settings or {})
    archive = _ROOT / _ARCHIVE
    if not archive.exists() or _sources_of(archive) == _sources_digest():
        return settings
    text = f"{_ARCHIVE} is not of these sources and is left out; `python native/gpu/compile.py` makes it anew"
    print(f"woolly: {text}", file=sys.stderr)
    given = settings.get("wheel.exclude", [])
    given = given.split(";") if isinstance(given, str) else given
    return {**settings, "sdist.include": "", "wheel.exclude": [*given, _ARCHIVE]}


def _sources_of(archive: Path) -> str:
    """Return the source digest in an archive; "" if the archive is damaged."""
    data = archive.read_bytes()
    try:
        return str(json.loads(data[12 : 12 + int.from_bytes(data[8:12], "little")])["sources"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""


def _sources_digest() -> str | None:
    """Return the digest that native/gpu/compile.py writes into an archive; None if this Python cannot compute it."""
    spec = importlib.util.spec_from_file_location("compile_gpu", _ROOT / "native" / "gpu" / "compile.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ImportError:
        return None
    return str(module.sources_digest())


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    """Return the requirements for building a wheel."""
    return [*_build.get_requires_for_build_wheel(config_settings), *_compiler()]


def get_requires_for_build_editable(config_settings: dict[str, Any] | None = None) -> list[str]:
    """Return the requirements for building an editable install."""
    return [*_build.get_requires_for_build_editable(config_settings), *_compiler()]


def _compiler() -> list[str]:
    if os.environ.get("WOOLLY_KERNELS") or not compiling.wanted_targets():
        return []
    return [NVRTC] if compiling.find_nvrtc() is None else []
