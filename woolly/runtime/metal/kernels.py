"""Metal kernels: compiled from the same sources as the Vulkan kernels, with the same arguments."""

from __future__ import annotations

from dataclasses import replace

from woolly.runtime.vulkan.ops import KERNELS as VULKAN

KERNELS = replace(VULKAN, backend="metal")
