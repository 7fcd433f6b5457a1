"""BLAS threads, which NumPy starts on import."""

from __future__ import annotations

import os
import sys

# Environment variables of OpenBLAS in NumPy's wheels, in order of precedence.
_SETTINGS = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")


def import_numpy(backend: str | None) -> None:
    """Import NumPy with a single BLAS thread.

    Does nothing if NumPy is already imported, if the environment sets a number of threads, or for the reference
    backend. Other backends have their own threads, and audio spectra in NumPy need only one. Starting a thread per core
    takes 60 ms on two cores. Only programs call this, not the library.
    """
    if backend == "reference" or "numpy" in sys.modules or any(name in os.environ for name in _SETTINGS):
        return
    os.environ[_SETTINGS[0]] = "1"
    try:
        import numpy  # noqa: F401  (starts its threads)
    finally:
        del os.environ[_SETTINGS[0]]  # child processes, such as MCP servers, must not inherit the variable
