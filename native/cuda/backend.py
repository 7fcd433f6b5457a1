"""The build backend of pyproject.toml: scikit-build-core, and NVRTC if kernels for GPUs are to be compiled.

NVRTC is 90 MB, and most machines have no GPU of NVIDIA: a list of requirements in pyproject.toml could not ask.
An archive of Vulkan kernels that is older than native/gpu stays out: who installs a package has no sources to compare,
and older kernels may take other arguments, which gives wrong numbers and no error.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import compile as compiling  # beside this file: backend-path
from scikit_build_core import build as _build

NVRTC = (
    "nvidia-cuda-nvrtc-cu12>=12.9,<13; sys_platform == 'linux' "
    "and (platform_machine == 'x86_64' or platform_machine == 'aarch64')"
)

_ROOT = Path(__file__).resolve().parents[2]
_ARCHIVE = "woolly/runtime/vulkan/kernels.bin"
_Settings = dict[str, Any]


def build_sdist(folder: str, config_settings: _Settings | None = None) -> str:
    """Builds the sdist; returns its name."""
    return _build.build_sdist(folder, _checked(config_settings))


def build_wheel(folder: str, config_settings: _Settings | None = None, metadata_directory: str | None = None) -> str:
    """Builds a wheel; returns its name."""
    return _build.build_wheel(folder, _checked(config_settings), metadata_directory)


def build_editable(folder: str, config_settings: _Settings | None = None, metadata_directory: str | None = None) -> str:
    """Builds the wheel of an editable install; returns its name."""
    return _build.build_editable(folder, _checked(config_settings), metadata_directory)


def _checked(settings: _Settings | None) -> _Settings:
    """The settings of a build, which leave out an archive of kernels that is not that of the sources."""
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
    """The digest of the sources that an archive was made of; empty if it is damaged."""
    data = archive.read_bytes()
    try:
        return str(json.loads(data[12 : 12 + int.from_bytes(data[8:12], "little")])["sources"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""


def _sources_digest() -> str | None:
    """What native/gpu/compile.py writes into an archive; none if this Python lacks what opens one."""
    spec = importlib.util.spec_from_file_location("compile_gpu", _ROOT / "native" / "gpu" / "compile.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ImportError:
        return None
    return str(module.sources_digest())


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    """Returns what is installed before a wheel is built."""
    return [*_build.get_requires_for_build_wheel(config_settings), *_compiler()]


def get_requires_for_build_editable(config_settings: dict[str, Any] | None = None) -> list[str]:
    """Returns what is installed before an editable install is built."""
    return [*_build.get_requires_for_build_editable(config_settings), *_compiler()]


def _compiler() -> list[str]:
    if os.environ.get("WOOLLY_KERNELS") or not compiling.wanted_targets():
        return []
    return [NVRTC] if compiling.find_nvrtc() is None else []
