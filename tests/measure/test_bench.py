"""The bench does the work it names, counts the bytes that this reads, and reports medians."""

import numpy as np
import pytest

from tests.cases.hybrids import HYBRIDS
from tests.cases.tiny import TINY, write_tiny
from woolly import LLM
from woolly.errors import RequestError
from woolly.gguf import open_gguf
from woolly.measure.bench import Bench, Measured, Workload, token_at
from woolly.measure.perplexity import Scorer
from woolly.measure.time_bounds import PARTS
from woolly.models import trace
from woolly.plan.ops import OPS
from woolly.runtime import PAGE_SIZE, Options
from woolly.runtime.cpu import CpuBackend

PROMPT, PAIR = Workload("prompt", 40), Workload("generation", 3, 2)


@pytest.fixture
def program(tmp_path):
    file = open_gguf(write_tiny(TINY["llama"], tmp_path / "tiny.gguf"))
    return CpuBackend().compile(trace(file), file.tensors, Options(threads=2, max_rows=16))


@pytest.fixture
def batches(program, monkeypatch):
    """Every batch that the program runs."""
    seen, run = [], program.run
    monkeypatch.setattr(program, "run", lambda batch, state: (seen.append(batch), run(batch, state)))
    return seen


def test_prompt_runs_in_chunks_and_only_its_last_token_needs_logits(program, batches):
    assert Bench(program, [PROMPT]).run(PROMPT) > 0
    assert [batch.n_rows for batch in batches] == [16, 16, 8]
    assert [p for batch in batches for p in batch.positions] == list(range(40))
    assert [batch.output_rows.tolist() for batch in batches] == [[], [], [7]]


def test_sequences_generate_concurrently_in_their_own_pages(program, batches):
    work = Workload("generation", PAGE_SIZE + 1, 3)
    Bench(program, [work]).run(work)
    assert len(batches) == PAGE_SIZE + 1
    assert batches[-1].positions.tolist() == [PAGE_SIZE] * 3
    assert len(set(batches[-1].pages.ravel())) == batches[-1].pages.size == 6
    assert batches[-1].output_rows.tolist() == [0, 1, 2]


def test_sequences_have_their_own_tokens_and_equal_positions(program, batches):
    works = [Workload("generation", 2, 3, 5), Workload("prompt", 4, 1, 3)]
    bench = Bench(program, works)
    for work in works:
        bench.run(work)
    n_vocab = program.plan.width
    depths, tokens = batches[:3], batches[3:5]
    assert [batch.tokens.tolist() for batch in depths] == [
        [token_at(i, s) % n_vocab for i in range(5)] for s in range(3)
    ]
    assert [batch.tokens.tolist() for batch in tokens] == [[token_at(i, s) % n_vocab for s in range(3)] for i in (5, 6)]
    assert all(len(set(batch.tokens.tolist())) == 3 for batch in tokens)
    assert batches[5].tokens.tolist() == [token_at(i, 0) % n_vocab for i in range(3, 7)]


def test_largest_batch_has_no_common_tokens():
    assert len({token_at(7, s) for s in range(512)}) == 512


def test_workloads_are_measured_in_turn(program, batches):
    measured = Bench(program, [Workload("prompt", 5), Workload("generation", 1, 2)]).measure(2)
    assert [batch.n_rows for batch in batches] == [5, 2, 5, 2]
    assert [(m.work.name, len(m.seconds)) for m in measured] == [("pp5", 2), ("tg1x2", 2)]


def test_rates_use_the_median_repetition():
    measured = Measured(Workload("generation", 10, 4), seconds=(4.0, 1.0, 2.0), n_bytes=6 * 10**9)
    assert measured.rate == 20
    assert measured.rates == (10, 40, 20)
    assert measured.gb_per_second == 3


def is_behind(name):
    """True if a weight is used after the last attention, where a prompt needs its last row only."""
    return name.startswith("blk.1.") and ("ffn" in name or "attn_output" in name)


def test_bytes_are_all_weights_per_run_and_the_written_cache(program):
    table = program.plan.weights["token_embd.weight"]
    weights = sum(4 * w.shape[0] * (w.shape[1] if len(w.shape) == 2 else 1) for w in program.plan.weights.values())
    weights -= 4 * table.shape[0] * table.shape[1]  # of the table only the rows of the tokens are read
    row = 4 * table.shape[1]
    cache = 2 * 2 * 2 * 16 * 2  # layers, K and V, heads, width, bytes of f16
    bench = Bench(program, [PROMPT, PAIR])
    assert bench.n_bytes(PAIR) == 3 * weights + 6 * row + 2 * (1 + 2 + 3) * cache
    logits = 4 * program.plan.width * table.shape[1]  # of a prompt computed once, after its last token
    norm = 4 * table.shape[1]
    behind = sum(w.n_bytes for name, w in program.plan.weights.items() if is_behind(name))
    layers = weights - logits - norm - behind
    assert bench.n_bytes(PROMPT) == 3 * layers + behind + logits + norm + 40 * row + (16 + 32 + 40) * cache


def test_flops_are_those_of_matrices_and_attention(program):
    bench = Bench(program, [PROMPT, PAIR])
    matrices = {name: w.shape[0] * w.shape[1] for name, w in program.plan.weights.items() if len(w.shape) == 2}
    logits = matrices.pop("output.weight")
    del matrices["token_embd.weight"]
    attention = 2 * 2 * (4 * 16)  # layers, K and V, heads times width
    _, costs = bench.costs(PAIR)
    assert sum(cost.macs for cost in costs) == 6 * (sum(matrices.values()) + logits) + 2 * (1 + 2 + 3) * attention
    _, costs = bench.costs(PROMPT)
    seen = sum(range(1, 41))
    once = logits + sum(n for name, n in matrices.items() if is_behind(name))
    assert (
        sum(cost.macs for cost in costs)
        == 40 * sum(n for name, n in matrices.items() if not is_behind(name)) + once + seen * attention
    )


def test_depth_is_computed_once_before_timing(program, batches):
    deep = Workload("generation", 2, 2, 20)
    bench = Bench(program, [deep, Workload("prompt", 4, 1, 24)])
    bench.run(deep)
    assert [batch.positions.tolist() for batch in batches[:4]] == 2 * [[*range(16)], [16, 17, 18, 19]]
    assert [batch.positions.tolist() for batch in batches[4:]] == [[20, 20], [21, 21]]
    del batches[:]
    bench.run(deep)
    assert len(batches) == 2
    bench.run(Workload("prompt", 4, 1, 24))
    assert [batch.positions.tolist() for batch in batches[2:]] == [[22, 23], [24, 25, 26, 27]]


@pytest.mark.parametrize("quick", [False, True])
def test_rows_after_a_depth_equal_an_uninterrupted_run_unless_filled_quickly(program, quick):
    whole, deep = Workload("prompt", 24), Workload("prompt", 4, 1, 20)
    logits, run = [], program.run
    program.run = lambda *arguments: logits.append(run(*arguments).copy())
    Bench(program, [whole]).run(whole)
    Bench(program, [deep], quick_fill=quick).run(deep)
    assert np.array_equal(logits[-1], logits[1]) is not quick


@pytest.mark.parametrize(
    ("work", "name"),
    [
        (Workload("prompt", 512), "pp512"),
        (Workload("generation", 128), "tg128"),
        (Workload("generation", 128, 8), "tg128x8"),
        (Workload("generation", 16, 2, 4096), "tg16x2 @ d4096"),
    ],
)
def test_workload_names_match_llama_bench(work, name):
    assert work.name == name


def test_profile_accounts_for_every_step_and_byte_and_is_off_afterwards(program):
    bench = Bench(program, [PAIR])
    *kinds, outside = bench.profile(PAIR)
    assert sum(kind.n_steps for kind in kinds) == len(program.running_plan.steps)
    assert sum(kind.n_bytes for kind in kinds) == pytest.approx(bench.n_bytes(PAIR) / 3, abs=len(kinds))
    assert {"embed", "attend", "attn_q attn_k attn_v (F32)", "output (F32)"} <= {kind.name for kind in kinds}
    assert sorted((kind.seconds for kind in kinds), reverse=True) == [kind.seconds for kind in kinds]
    assert outside.n_steps == outside.n_bytes == 0
    bench.run(PAIR)  # is not timed
    with program.timed() as times:
        pass
    assert len(times) == len(program.running_plan.steps) and not any(times)


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (Workload("prompt", 0), "at least 1 token"),
        (Workload("generation", 1, 0), "at least 1 token and 1 sequence"),
        (Workload("generation", 1, 17), "at most 16 run concurrently"),
    ],
)
def test_unmeasurable_settings_are_rejected(program, work, message):
    with pytest.raises(RequestError, match=message):
        Bench(program, [work])


def test_recurrent_model_is_measured_and_scored_like_others(tmp_path):
    path = write_tiny(HYBRIDS["qwen35"], tmp_path / "tiny.gguf")
    with LLM(path, ctx=64, threads=1) as llm:
        works = [Workload("prompt", 40), Workload("generation", 3, 2), Workload("generation", 2, 1, depth=33)]
        measured = Bench(llm.engine.program, works).measure(1)
        assert [m.work for m in measured] == works
        tokens = np.random.RandomState(0).randint(0, 256, 48).tolist()
        logits = llm.logits(tokens)
    with Scorer(str(path), 48, threads=1, kv_type=None, backend="cpu") as scorer:
        parts = list(scorer.logits(tokens))
    (first, rows) = parts[0]
    np.testing.assert_array_equal(rows, logits[first : first + len(rows)])


def test_every_part_of_the_op_table_is_shown_by_why():
    assert {row.part for row in OPS.values() if isinstance(row.part, str)} <= set(PARTS)
