"""An index over a long past: the same bits in every chunk and for all numbers of threads."""

from dataclasses import replace

import numpy as np
import pytest

from tests.cases.families import FAMILIES
from tests.cases.tiny import write_tiny
from woolly.errors import PlanError
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.plan import Tracer
from woolly.runtime import Batch, Options, get_backend, pages_for
from woolly.runtime.reference.indexer import best_positions

N = 1100  # positions: more than the 1024 that one task scores
TOKENS = np.random.RandomState(3).randint(0, 264, N)


def logits(program, chunks):
    """Logits of the last row of each chunk."""
    state, first, out = program.new_state(pages_for(N)), 0, []
    for n in chunks:
        batch = Batch.of([(TOKENS[first : first + n], first, range(pages_for(N)))])
        out.append(program.run(batch, state)[0].copy())
        first += n
    assert first == N
    return out


@pytest.mark.parametrize("name", ["deepseek-v32", "minimax-m3"])
def test_long_context_gives_the_same_bits_at_every_chunk_size(name, tmp_path):
    with open_gguf(write_tiny(replace(FAMILIES[name], context=2048), tmp_path / "tiny.gguf")) as file:
        plan = trace(file)
        one, three = (
            get_backend("cpu").compile(plan, file.tensors, Options(kv_type="f16", threads=threads))
            for threads in (1, 3)
        )
        wanted = logits(one, [512, 512, 75, 1])
        for program, chunks in ((three, [512, 512, 75, 1]), (three, [512, 512, *[7] * 10, *[1] * 6])):
            np.testing.assert_array_equal(logits(program, chunks)[-1], wanted[-1])


@pytest.mark.parametrize("name", ["deepseek-v32", "minimax-m3"])
def test_rows_that_choose_all_positions_match_a_model_without_an_index(name, tmp_path):
    tiny = FAMILIES[name]
    wide = replace(
        tiny,
        context=2048,
        extra=tiny.extra | {"attention.indexer.top_k": 1000 // tiny.extra.get("attention.indexer.block_size", 1)},
    )
    with open_gguf(write_tiny(wide, tmp_path / "tiny.gguf")) as file:
        found = []
        for ctx in (2048, 1000):
            plan = trace(file, ctx=ctx)
            assert ("indexer" in {step.op for step in plan.steps}) == (ctx == 2048)
            program = get_backend("cpu").compile(plan, file.tensors, Options(threads=2))
            found.append(program.run(Batch.of([(TOKENS[:70], 0, range(3))]), program.new_state(3)).copy())
    np.testing.assert_array_equal(*found)


def test_earlier_of_equal_scores_is_chosen():
    scores = np.array([0, 3, 3, -1, 3, 0], np.float32)
    assert best_positions(scores, 2, 1, 0).tolist() == [1, 2]
    assert best_positions(scores, 4, 1, 0).tolist() == [0, 1, 2, 4]
    assert best_positions(scores, 2, 2, 1).tolist() == [0, 1, 4, 5]


def test_nan_scores_come_last_regardless_of_local_blocks():
    scores = np.array([np.nan, np.nan, np.inf, np.nan, np.nan, -np.inf, np.nan], np.float32)
    assert best_positions(scores, 3, 1, 0).tolist() == [0, 2, 5]
    assert best_positions(scores, 2, 2, 0).tolist() == [2, 3, 4, 5]
    assert best_positions(scores, 1, 2, 1).tolist() == [6]


def test_impossible_choice_is_rejected_at_the_model_line():
    p = Tracer("test", {})
    with pytest.raises(PlanError, match="a row's own block is one"):
        q = p.input(width=8)
        p.indexer(q, q, head_dim=8, n=2, block=4)
