"""An index on a device of Vulkan: the positions of the cpu backend, where a group has more than its threads hold."""

import numpy as np
import pytest

from tests.cases.choosing import _choice
from tests.cases.families import FAMILIES
from tests.cases.ops import Case, Run, _tables, run
from tests.cases.tiny import write_tiny
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.runtime import Batch, Options
from woolly.runtime.cpu import CpuBackend
from woolly.runtime.vulkan.ops import choosing

PAGES = tuple(range(23))
# Many rows, then one, a few, and some more behind more candidates than a group has threads.
LONG: tuple[Run, ...] = (((500, 0, PAGES),), ((200, 500, PAGES),), ((1, 700, PAGES),), ((5, 701, PAGES),))
CASES = {
    "heads-11": (11, 300, 1, True, "q4"),
    "each-of-11": (11, 200, 3, False, "f16"),
    "blocks-over-threads": (2, 2, 300, False, "f32"),
    "blocks": (9, 3, 50, False, "q8_0"),
}


def check(case, vulkan, folder):
    with case.open(folder) as file:
        plan, options = case.plan(file), Options(kv_type=case.kv_type, threads=1)
        found, wanted = (run(case, one.compile(plan, file.tensors, options)) for one in (vulkan, CpuBackend()))
    np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32))


@pytest.mark.parametrize("name", CASES)
def test_many_candidates_give_the_positions_of_the_cpu_backend(name, vulkan, tmp_path, monkeypatch):
    heads, n, block, has_weights, kv_type = CASES[name]
    monkeypatch.setattr("tests.cases.choosing.HEAD", 36)
    # For some rows at once, one after another; not too many, for llvmpipe ends loops after 65,535 rounds in all.
    monkeypatch.setattr(choosing, "_SCORES", 1 << 16)
    monkeypatch.setattr(choosing, "MAX_CONTEXT", 1 << 10)
    tables = _tables(index_q=heads * 36, index_k=36, **({"index_weights": heads} if has_weights else {}))
    build = lambda p: _choice(p, n=n, block=block, has_weights=has_weights)  # noqa: E731
    check(Case(f"pick-{name}", "pick", tables, build, "exact", LONG, kv_type), vulkan, tmp_path)


@pytest.mark.parametrize("kv_type", ["f16", "q4"])
@pytest.mark.parametrize("name", ["deepseek-v32", "minimax-m3"])
def test_sequences_beside_each_other_choose_as_each_alone(name, kv_type, vulkan, tmp_path):
    tokens = np.random.RandomState(7).randint(0, 264, 70)
    with open_gguf(write_tiny(FAMILIES[name], tmp_path / "tiny.gguf")) as file:
        plan, options = trace(file), Options(kv_type=kv_type, threads=1)
        program, cpu = (one.compile(plan, file.tensors, options) for one in (vulkan, CpuBackend()))
        texts = tokens, tokens[5:45]
        wanted = [cpu.run(Batch.of([(x, 0, [0, 1, 2])], range(len(x))), cpu.new_state(4)).copy() for x in texts]
        state, begun, pages = program.new_state(8), [0, 0], ([2, 0, 7], [5, 6, 3])
        # Many rows, one of each, a few, and many of one beside one of the other.
        for counts in ((50, 26), (1, 1), (3, 4), (16, 1)):
            ends = [at + n for at, n in zip(begun, counts, strict=True)]
            parts = [(x[at:end], at, own) for x, at, end, own in zip(texts, begun, ends, pages, strict=True)]
            found = program.run(Batch.of(parts, range(sum(counts))), state).copy()
            rows = np.concatenate([x[at:end] for x, at, end in zip(wanted, begun, ends, strict=True)])
            np.testing.assert_array_equal(found.view(np.uint32), rows.view(np.uint32))
            begun = ends
