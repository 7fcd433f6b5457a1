"""Emitters of Vulkan kernels by op, registered by the modules in `ops/`."""

from __future__ import annotations

from woolly.runtime.gpu.kernels import Emitters

EMITTERS = Emitters()
emits = EMITTERS.enter
