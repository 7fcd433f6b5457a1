"""Registry of the CUDA emitters by op, filled by the modules of `ops/`."""

from __future__ import annotations

from woolly.runtime.gpu.kernels import Emitters

EMITTERS = Emitters()
emits = EMITTERS.enter
