"""Tries an installed Woolly: every kernel level of this CPU must write the same text with a tiny model.

    python tests/packaging/smoke.py [LEVEL...]
    python tests/packaging/smoke.py --having LEVEL...

Run from outside the checkout by the Python that has the wheel. With levels named, exactly these must be there, best
first: so that a build that forgot one fails. --having is for a machine whose CPU is not known: these and maybe more.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from pathlib import Path

import woolly
from woolly import LLM, SamplingParams

CASES = Path(__file__).resolve().parent.parent / "cases" / "tiny.py"
MODELS = ("llama", "qwen3")

GREEDY = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)


def tiny_models(folder: Path) -> list[Path]:
    """Loaded by its path: the checkout's own woolly, without a native module, must not be imported."""
    spec = importlib.util.spec_from_file_location("tiny", CASES)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tiny"] = module
    spec.loader.exec_module(module)
    return [module.write_tiny(module.TINY[name], folder / f"{name}.gguf") for name in MODELS]


def answer(path: Path) -> str:
    with LLM(path) as llm:
        return llm.generate("Once upon a time", GREEDY).text


def is_as_expected(levels: list[str], expected: list[str]) -> bool:
    """True if the build has the ISAs named on the command line."""
    if expected[:1] == ["--having"]:
        return set(expected[1:]) <= set(levels)
    return not expected or levels == expected


def main(expected: list[str]) -> None:
    levels = woolly._native.kernel_levels()
    print(f"woolly {woolly.__version__} from {Path(woolly.__file__).parent}, levels {' '.join(levels)}")
    if not is_as_expected(levels, expected):
        sys.exit(f"expected the levels {' '.join(expected)}")
    texts = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = tiny_models(Path(folder))
        for level in levels:
            os.environ["WOOLLY_ISA"] = level  # read when a model is loaded
            texts[level] = [answer(path) for path in paths]
            print(f"{level}: {texts[level][0]!r}")
    if any(text != texts[levels[0]] for text in texts.values()):
        sys.exit("the levels differ")


if __name__ == "__main__":
    main(sys.argv[1:])
