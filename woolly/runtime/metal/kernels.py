"""The kernels of Metal: those of Vulkan, from the same sources and with the same arguments."""

from __future__ import annotations

from dataclasses import replace

from woolly.runtime.vulkan.ops import KERNELS as VULKAN

KERNELS = replace(VULKAN, backend="metal")
