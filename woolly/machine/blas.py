"""BLAS: the threads that NumPy starts for its products as it is imported."""

from __future__ import annotations

import os
import sys

# What OpenBLAS, which NumPy's wheels bring, reads as it is loaded, the first that is set.
_SETTINGS = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")


def import_numpy(backend: str | None) -> None:
    """Imports NumPy with one BLAS thread.

    Nothing if NumPy is imported already, if the environment sets a number of threads, or for the reference backend.
    The other backends compute with threads of their own; spectra of audio, which NumPy computes, take one. To start
    one for each core takes 60 ms on two cores. A library leaves this to the program that it is a part of.
    """
    if backend == "reference" or "numpy" in sys.modules or any(name in os.environ for name in _SETTINGS):
        return
    os.environ[_SETTINGS[0]] = "1"
    try:
        import numpy  # noqa: F401  (only for its threads)
    finally:
        del os.environ[_SETTINGS[0]]  # not for the programs that this one starts, such as MCP servers
