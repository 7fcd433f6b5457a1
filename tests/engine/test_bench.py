"""The bench does the work it names, counts the bytes that this reads, and reports medians."""

import subprocess
import sys

import numpy as np
import pytest

from tests.cases.tiny import TINY, write_tiny
from woolly.engine.bench import Bench, Measured, Work, peak_mib, reset_peak, token_at
from woolly.errors import RequestError
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.runtime import PAGE_SIZE, Options
from woolly.runtime.cpu import CpuBackend

PROMPT, PAIR = Work("prompt", 40), Work("generation", 3, 2)


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


def test_a_prompt_runs_in_chunks_and_wants_the_logits_of_its_last_token_alone(program, batches):
    assert Bench(program, [PROMPT]).run(PROMPT) > 0
    assert [batch.n_rows for batch in batches] == [16, 16, 8]
    assert [p for batch in batches for p in batch.positions] == list(range(40))
    assert [batch.output_rows.tolist() for batch in batches] == [[], [], [7]]


def test_sequences_generate_at_once_in_pages_of_their_own(program, batches):
    work = Work("generation", PAGE_SIZE + 1, 3)
    Bench(program, [work]).run(work)
    assert len(batches) == PAGE_SIZE + 1
    assert batches[-1].positions.tolist() == [PAGE_SIZE] * 3
    assert len(set(batches[-1].pages.ravel())) == batches[-1].pages.size == 6
    assert batches[-1].output_rows.tolist() == [0, 1, 2]


def test_sequences_have_tokens_of_their_own_and_a_position_the_same_in_every_work(program, batches):
    works = [Work("generation", 2, 3, 5), Work("prompt", 4, 1, 3)]
    bench = Bench(program, works)
    for work in works:
        bench.run(work)
    n_vocab = program.plan.n_vocab
    depths, tokens = batches[:3], batches[3:5]
    assert [batch.tokens.tolist() for batch in depths] == [
        [token_at(i, s) % n_vocab for i in range(5)] for s in range(3)
    ]
    assert [batch.tokens.tolist() for batch in tokens] == [[token_at(i, s) % n_vocab for s in range(3)] for i in (5, 6)]
    assert all(len(set(batch.tokens.tolist())) == 3 for batch in tokens)
    assert batches[5].tokens.tolist() == [token_at(i, 0) % n_vocab for i in range(3, 7)]


def test_no_two_sequences_of_the_largest_batch_have_a_token_in_common():
    assert len({token_at(7, s) for s in range(512)}) == 512


def test_measuring_takes_works_in_turn(program, batches):
    measured = Bench(program, [Work("prompt", 5), Work("generation", 1, 2)]).measure(2)
    assert [batch.n_rows for batch in batches] == [5, 2, 5, 2]
    assert [(m.work.name, len(m.seconds)) for m in measured] == [("pp5", 2), ("tg1x2", 2)]


def test_rates_are_of_the_median_repetition():
    measured = Measured(Work("generation", 10, 4), seconds=(4.0, 1.0, 2.0), n_bytes=6 * 10**9)
    assert measured.rate == 20
    assert measured.rates == (10, 40, 20)
    assert measured.gb_per_second == 3


def test_bytes_are_all_weights_per_run_and_the_cache_that_was_written(program):
    table = program.plan.weights["token_embd.weight"]
    weights = sum(4 * w.shape[0] * (w.shape[1] if len(w.shape) == 2 else 1) for w in program.plan.weights.values())
    weights -= 4 * table.shape[0] * table.shape[1]  # of the table only the rows of the tokens are read
    row = 4 * table.shape[1]
    cache = 2 * 2 * 2 * 16 * 2  # layers, K and V, heads, width, bytes of f16
    bench = Bench(program, [PROMPT, PAIR])
    assert bench.n_bytes(PAIR) == 3 * weights + 6 * row + 2 * (1 + 2 + 3) * cache
    logits = 4 * program.plan.n_vocab * table.shape[1]  # of a prompt computed once, after its last token
    norm = 4 * table.shape[1]
    layers = weights - logits - norm
    assert bench.n_bytes(PROMPT) == 3 * layers + logits + norm + 40 * row + (16 + 32 + 40) * cache


def test_products_are_those_of_matrices_and_of_attention(program):
    bench = Bench(program, [PROMPT, PAIR])
    matrices = {name: w.shape[0] * w.shape[1] for name, w in program.plan.weights.items() if len(w.shape) == 2}
    logits = matrices.pop("output.weight")
    del matrices["token_embd.weight"]
    attention = 2 * 2 * (4 * 16)  # layers, K and V, heads times width
    _, costs = bench.costs(PAIR)
    assert sum(cost.macs for cost in costs) == 6 * (sum(matrices.values()) + logits) + 2 * (1 + 2 + 3) * attention
    _, costs = bench.costs(PROMPT)
    seen = sum(range(1, 41))
    assert sum(cost.macs for cost in costs) == 40 * sum(matrices.values()) + logits + seen * attention


def test_a_depth_is_computed_once_before_the_clock_starts(program, batches):
    deep = Work("generation", 2, 2, 20)
    bench = Bench(program, [deep, Work("prompt", 4, 1, 24)])
    bench.run(deep)
    assert [batch.positions.tolist() for batch in batches[:4]] == 2 * [[*range(16)], [16, 17, 18, 19]]
    assert [batch.positions.tolist() for batch in batches[4:]] == [[20, 20], [21, 21]]
    del batches[:]
    bench.run(deep)
    assert len(batches) == 2
    bench.run(Work("prompt", 4, 1, 24))
    assert [batch.positions.tolist() for batch in batches[2:]] == [[22, 23], [24, 25, 26, 27]]


@pytest.mark.parametrize("quick", [False, True])
def test_what_follows_a_depth_is_the_same_as_without_a_break_unless_filled_quickly(program, quick):
    whole, deep = Work("prompt", 24), Work("prompt", 4, 1, 20)
    logits, run = [], program.run
    program.run = lambda *arguments: logits.append(run(*arguments).copy())
    Bench(program, [whole]).run(whole)
    Bench(program, [deep], quick_fill=quick).run(deep)
    assert np.array_equal(logits[-1], logits[1]) is not quick


@pytest.mark.parametrize(
    ("work", "name"),
    [
        (Work("prompt", 512), "pp512"),
        (Work("generation", 128), "tg128"),
        (Work("generation", 128, 8), "tg128x8"),
        (Work("generation", 16, 2, 4096), "tg16x2 @ d4096"),
    ],
)
def test_works_are_called_as_llama_bench_calls_them(work, name):
    assert work.name == name


def test_a_profile_accounts_for_every_step_and_byte_and_is_off_afterwards(program):
    bench = Bench(program, [PAIR])
    *kinds, outside = bench.profile(PAIR)
    assert sum(kind.n_steps for kind in kinds) == len(program.fused.steps)
    assert sum(kind.n_bytes for kind in kinds) == pytest.approx(bench.n_bytes(PAIR) / 3, abs=len(kinds))
    assert {"embed", "attend", "attn_q attn_k attn_v (F32)", "output (F32)"} <= {kind.name for kind in kinds}
    assert sorted((kind.seconds for kind in kinds), reverse=True) == [kind.seconds for kind in kinds]
    assert outside.n_steps == outside.n_bytes == 0
    bench.run(PAIR)
    assert not any(program.take_times())


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (Work("prompt", 0), "at least 1 token"),
        (Work("generation", 1, 0), "at least 1 token and 1 sequence"),
        (Work("generation", 1, 17), "at most 16 run at once"),
    ],
)
def test_what_cannot_be_measured_is_refused(program, work, message):
    with pytest.raises(RequestError, match=message):
        Bench(program, [work])


def test_peak_memory_only_grows():
    before = peak_mib()
    held = bytearray(64 << 20)
    assert peak_mib() >= before > 1
    assert len(held) == 64 << 20


def test_a_peak_that_begins_anew_forgets_what_was_freed():
    if not reset_peak():
        pytest.skip("this system keeps the peak of a process")
    code = """
from woolly.engine.bench import peak_mib, reset_peak
held = bytearray(256 << 20)
held[::4096] = bytes(len(held) // 4096 + (len(held) % 4096 > 0))
before = peak_mib()
del held
assert reset_peak()
print(before, peak_mib())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    before, after = map(float, done.stdout.split())
    assert after < before - 200
