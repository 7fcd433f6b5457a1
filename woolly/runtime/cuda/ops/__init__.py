"""Emitters, one module per family of ops. Importing this package registers all."""

import importlib
import pkgutil

from woolly.runtime.cuda.emitters import EMITTERS
from woolly.runtime.cuda.ops.attention import is_far, joined
from woolly.runtime.gpu.kernels import Kernels
from woolly.runtime.gpu.top_k import Ranker

__all__ = ["KERNELS"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

KERNELS = Kernels("cuda", EMITTERS, joined, is_far, Ranker, sees=True, repeats=True)
