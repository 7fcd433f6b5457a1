"""The emitters of Vulkan kernels, by op. A file of `ops/` enters its own."""

from __future__ import annotations

from woolly.runtime.gpu.kernels import Emitters

EMITTERS = Emitters()
emits = EMITTERS.enter
