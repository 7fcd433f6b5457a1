"""Child process of a trial: compiles one grammar under limits. It is run by path and imports nothing of woolly.

Reads a JSON object from standard input. Exit status 0 means that the grammar was compiled or rejected within the
limits.
"""

from __future__ import annotations

import importlib.util
import json
import runpy
import sys
import threading
from typing import Any


def main() -> None:
    """Compile the grammar from standard input with a vocabulary of single bytes."""
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
    thread.join()  # if `work` raised, compiling in the parent raises the same error


if __name__ == "__main__":
    main()
