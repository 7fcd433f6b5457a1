"""Adapters and draft models that were damaged end in one sentence or compute: no signal, no hang, no other error."""

import subprocess
import sys

import pytest

from tests.cases.tiny import TINY, write_tiny
from tests.engine.test_adapters import lora, write_lora

# A mutant has one to four changes: bytes near the beginning (keys, shapes, offsets), numbers there, or a shorter file.
CHILD = """
import random, sys
from pathlib import Path
from woolly import LLM, SamplingParams
from woolly.errors import WoollyError

kind, model, other, first, last = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
whole, n_ran, n_refused = other.read_bytes(), 0, 0
params = SamplingParams(max_tokens=3, temperature=0)
for seed in range(first, last):
    chance, data = random.Random(seed), bytearray(whole)
    for _ in range(chance.randrange(1, 5)):
        at = chance.randrange(min(len(data) - 8, 6000))
        match chance.randrange(4):
            case 0: data[at] ^= 1 << chance.randrange(8)
            case 1: data[at] = chance.choice((0, 1, 127, 128, 255))
            case 2: data[at : at + 8] = chance.choice((0, 1, 2**31, 2**32, 2**63 - 1, 2**64 - 1)).to_bytes(8, "little")
            case 3: data = data[: chance.randrange(max(64, len(data) // 2), len(data))]
    path = other.with_name(f"mutant-{kind}.gguf")
    path.write_bytes(data)
    options = {"adapters": [str(path)]} if kind == "adapter" else {"speculation": str(path)}
    try:
        with LLM(model, ctx=128, threads=1, **options) as llm:
            llm.generate("hello", params)
        n_ran += 1
    except WoollyError:
        n_refused += 1
print(n_ran, n_refused)
"""


@pytest.mark.parametrize("kind", ["adapter", "draft"])
def test_damaged_files_give_a_one_line_error(tmp_path, kind):
    model = write_tiny(TINY["llama"], tmp_path / "model.gguf")
    other = tmp_path / "other.gguf"
    if kind == "adapter":
        write_lora(other, lora(0))
    else:
        write_tiny(TINY["llama"], other)
    command = [sys.executable, "-W", "ignore", "-c", CHILD, kind, str(model), str(other), "0", "100"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    n_ran, n_refused = map(int, done.stdout.split())
    assert n_ran + n_refused == 100 and n_ran > 0 and n_refused > 0
