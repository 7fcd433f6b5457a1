"""Emitters, one file for each family of ops. Importing this package enters them all."""

import importlib
import pkgutil

from woolly.plan import Plan
from woolly.runtime.gpu.kernels import Kernels
from woolly.runtime.vulkan.emitters import EMITTERS
from woolly.runtime.vulkan.ops.attention import is_far
from woolly.runtime.vulkan.rank import KeyRanker

__all__ = ["KERNELS"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def _joined(plan: Plan, kv_type: str) -> frozenset[int]:
    """No kernel computes two steps."""
    return frozenset()


KERNELS = Kernels("vulkan", EMITTERS, _joined, is_far, KeyRanker, sees=True, arithmetic="cpu")
