"""A forked child is refused its parent's LLM in one sentence, whatever the parent was doing, and may open its own."""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases.tiny import TINY, write_tiny

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

ROOT = Path(__file__).parents[2]

CHILD = """
import multiprocessing, sys, threading
from concurrent.futures import ProcessPoolExecutor
from woolly import LLM, SamplingParams
from woolly.errors import RequestError

path, method, state = sys.argv[1:]
FEW = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
llm = None

def parents(prompt):
    try:
        with llm:
            return llm.generate(prompt, FEW).token_ids
    except RequestError as error:
        llm.close()
        return str(error)

def own(prompt):
    with LLM(path, ctx=256) as mine:
        return mine.generate(prompt, FEW).token_ids

if __name__ == "__main__":
    with LLM(path, ctx=256) as llm:
        stream = None
        if state == "busy":
            stream = llm.generate([1], LONG, stream=True)
            next(iter(stream))
        prompts = [[1, 2], [3, 4], [5, 6]]
        # One that says so when a child dies.
        with ProcessPoolExecutor(2, multiprocessing.get_context(method)) as pool:
            if method == "fork":
                for answer in pool.map(parents, prompts):
                    assert "belongs to the parent process" in answer, answer
            answers = [*pool.map(own, prompts)]
        if stream is not None:
            assert len([*stream]) > 0
        assert answers == [llm.generate(prompt, FEW).token_ids for prompt in prompts]
"""


@pytest.mark.parametrize("state", ["loading", "busy"])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_process_pool_uses_its_own_models(tmp_path, method, state):
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this system cannot {method}")
    path = write_tiny(TINY["llama"], tmp_path / "tiny.gguf")
    script = tmp_path / "pool.py"
    script.write_text(CHILD)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(path), method, state],
        env=environment, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
