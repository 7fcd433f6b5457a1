"""The child process of a trial: compiles one grammar under limits. Run by path, it imports nothing of woolly.

Its standard input is one JSON object. Exit status 0: the grammar was compiled or refused within the limits.
"""

from __future__ import annotations

import importlib.util
import json
import runpy
import sys
import threading
from typing import Any


def main() -> None:
    """Compiles the grammar of the standard input with a vocabulary of single bytes."""
    order = json.load(sys.stdin)
    runpy.run_path(order["limiter"])["limit_process"](order["memory"], order["seconds"])
    spec = importlib.util.spec_from_file_location("llguidance._lib", order["library"])
    assert spec is not None
    assert spec.loader is not None
    library: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(library)

    def work() -> None:
        limits = library.LLParserLimits(verbose_errors=False, **order["limits"])
        library.LLMatcher(library.LLTokenizer("byte"), order["grammar"], log_level=0, limits=limits)

    threading.stack_size(order["stack"])
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()  # if `work` raised, the parent meets the same error


if __name__ == "__main__":
    main()
