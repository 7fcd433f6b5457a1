"""The build backend of pyproject.toml: scikit-build-core, and NVRTC if kernels for GPUs are to be compiled.

NVRTC is 90 MB, and most machines have no GPU of NVIDIA: a list of requirements in pyproject.toml could not ask.
"""

from __future__ import annotations

import os
from typing import Any

import compile as compiling  # beside this file: backend-path
from scikit_build_core.build import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)
from scikit_build_core.build import get_requires_for_build_editable as _editable
from scikit_build_core.build import get_requires_for_build_wheel as _wheel

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

NVRTC = (
    "nvidia-cuda-nvrtc-cu12>=12.9,<13; sys_platform == 'linux' "
    "and (platform_machine == 'x86_64' or platform_machine == 'aarch64')"
)


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    """Returns what is installed before a wheel is built."""
    return [*_wheel(config_settings), *_compiler()]


def get_requires_for_build_editable(config_settings: dict[str, Any] | None = None) -> list[str]:
    """Returns what is installed before an editable install is built."""
    return [*_editable(config_settings), *_compiler()]


def _compiler() -> list[str]:
    if os.environ.get("WOOLLY_KERNELS") or not compiling.wanted_targets():
        return []
    return [NVRTC] if compiling.find_nvrtc() is None else []
