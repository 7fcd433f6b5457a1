"""WHERE: backends that turn a plan into a program and run it."""

from woolly.runtime.backend import BACKENDS, Backend, Program, choose
from woolly.runtime.batch import Batch
from woolly.runtime.cancelled import CancelledRun
from woolly.runtime.options import KV_TYPES, Options, parse_size
from woolly.runtime.state import PAGE_SIZE, State, pages_for
from woolly.runtime.weights import WeightStats, WeightStore

__all__ = [
    "BACKENDS",
    "KV_TYPES",
    "PAGE_SIZE",
    "Backend",
    "Batch",
    "CancelledRun",
    "Options",
    "Program",
    "State",
    "WeightStats",
    "WeightStore",
    "choose",
    "pages_for",
    "parse_size",
]
