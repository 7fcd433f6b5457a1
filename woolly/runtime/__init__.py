"""WHERE: backends that turn a plan into a program and run it."""

from woolly.runtime.backend import BACKENDS, Backend, Program, choose
from woolly.runtime.batch import Batch
from woolly.runtime.state import PAGE_SIZE, State, pages_for
from woolly.runtime.weights import WeightStats, WeightStore

__all__ = [
    "BACKENDS",
    "PAGE_SIZE",
    "Backend",
    "Batch",
    "Program",
    "State",
    "WeightStats",
    "WeightStore",
    "choose",
    "pages_for",
]
