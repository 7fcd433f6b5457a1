"""Metal kernels. They have the same sources and arguments as the Vulkan kernels."""

from __future__ import annotations

from dataclasses import replace

from woolly.runtime.vulkan.ops import KERNELS as VULKAN

KERNELS = replace(VULKAN, backend="metal")
