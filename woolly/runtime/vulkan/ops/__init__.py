"""Emitters, one module per family of ops. Importing this package registers all of them."""

import importlib
import pkgutil

from woolly.runtime.gpu.kernels import Kernels
from woolly.runtime.vulkan.emitters import EMITTERS
from woolly.runtime.vulkan.ops.attention import is_far, joined, n_front
from woolly.runtime.vulkan.top_k import KeyRanker

__all__ = ["KERNELS"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


KERNELS = Kernels(
    "vulkan",
    EMITTERS,
    joined,
    is_far,
    KeyRanker,
    sees=True,
    n_front=n_front,
    centers=True,
    chooses=True,
    arithmetic="cpu",
)
