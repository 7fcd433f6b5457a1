"""WHERE IT RUNS: backends compile a plan into a program and run it."""

from woolly.runtime.batch import Batch
from woolly.runtime.choose import BACKENDS, choose
from woolly.runtime.options import KV_TYPES, Options, parse_size
from woolly.runtime.program import About, Backend, CancelledRun, DraftProgram, Program, WeightStats
from woolly.runtime.state import PAGE_SIZE, PortableState, State, pages_for

__all__ = [
    "BACKENDS",
    "KV_TYPES",
    "PAGE_SIZE",
    "About",
    "Backend",
    "Batch",
    "CancelledRun",
    "DraftProgram",
    "Options",
    "PortableState",
    "Program",
    "State",
    "WeightStats",
    "choose",
    "pages_for",
    "parse_size",
]
