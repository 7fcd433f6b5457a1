"""Compressed keys and hyper connections: their meaning by plain loops, and the same bits over a long past."""

from dataclasses import replace

import numpy as np
import pytest

from tests.cases.compressed_attention import COMPRESSIONS
from tests.cases.families import FAMILIES
from tests.cases.ops import expected
from tests.cases.tiny import write_tiny
from woolly.errors import PlanError, WoollyError
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.plan import Tracer
from woolly.runtime import Batch, Options, get_backend, pages_for

N = 1100  # positions: more than the 1024 that one task of an index scores
TOKENS = np.random.RandomState(3).randint(0, 264, N)


def logits(program, chunks):
    """Logits of the last row of each chunk."""
    state, first, out = program.new_state(pages_for(N), 2), 0, []
    for i, n in enumerate(chunks):
        rows = [(TOKENS[first : first + n], first, range(pages_for(N)))]
        batch = Batch.of(rows, slots=[(i % 2 if i else -1, (i + 1) % 2)])
        out.append(program.run(batch, state)[0].copy())
        first += n
    return out


@pytest.mark.parametrize("name", ["deepseek4", "qwen4exp"])
def test_long_context_gives_the_same_bits_at_every_chunk_size(name, tmp_path):
    with open_gguf(write_tiny(replace(FAMILIES[name], context=2048), tmp_path / "tiny.gguf")) as file:
        plan = trace(file)
        one, three = (
            get_backend("cpu").compile(plan, file.tensors, Options(kv_type="f16", threads=threads))
            for threads in (1, 3)
        )
        wanted = logits(one, [512, 512, 75, 1])
        for program, chunks in ((three, [512, 512, 75, 1]), (three, [512, 510, *[7] * 10, *[1] * 8])):
            np.testing.assert_array_equal(logits(program, chunks)[-1], wanted[-1])


@pytest.mark.parametrize(("name", "n"), [("deepseek4", 250), ("qwen4exp", 1000)])
def test_rows_that_choose_all_blocks_match_a_model_without_an_index(name, n, tmp_path):
    tiny = FAMILIES[name]
    wide = replace(tiny, context=2048, extra=tiny.extra | {"attention.indexer.top_k": n})
    with open_gguf(write_tiny(wide, tmp_path / "tiny.gguf")) as file:
        found = []
        for ctx in (2048, 1000):
            plan = trace(file, ctx=ctx)
            assert ("indexer" in {step.op for step in plan.steps}) == (ctx == 2048)
            program = get_backend("cpu").compile(plan, file.tensors, Options(threads=2))
            found.append(logits(program, [70, 1]))
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("name", ["compress-4x66-3", "compress-16x20-3"])
def test_block_is_the_weighted_sum_of_its_rows_per_column(name, tmp_path):
    case = COMPRESSIONS[name]
    with case.open(tmp_path) as file:
        found, _ = expected(case, file)
        kv, gate, bias = (file.tensors[f"{x}.weight"].dequantize() for x in ("kv", "gate", "bias"))
    every, width = len(bias), found.shape[1]
    texts, at = {}, 0  # tokens of each sequence, by its first page
    for run, batch in zip(case.runs, case.batches(), strict=True):
        for s, (n, first, (page, *_)) in enumerate(run):
            tokens = batch.tokens[batch.offsets[s] : batch.offsets[s + 1]]
            texts[page] = [*([] if first == 0 else texts[page]), *tokens]
            for position in range(first, first + n):
                row, at = found[at], at + 1
                if (position + 1) % every:
                    assert not row.any()
                    continue
                parts = []
                for back in range(position, max(-1, position - every * kv.shape[1] // width), -1):
                    half = slice(width, None) if position - back < every and kv.shape[1] > width else slice(width)
                    token, place = texts[page][back], back % every
                    parts.append((kv[token, half], gate[token, half] + bias[place, half]))
                shares = np.exp([score for _, score in parts])
                wanted = sum(share * value for share, (value, _) in zip(shares, parts, strict=True)) / shares.sum(
                    axis=0
                )
                np.testing.assert_allclose(row, wanted, atol=2e-6)


def test_streams_mix_by_a_doubly_stochastic_matrix(tmp_path):
    case = COMPRESSIONS["hyper_connections-4x20"]
    with case.open(tmp_path) as file:
        found, _ = expected(case, file)
    matrices = found[:, 8:].reshape(-1, 4, 4)
    for axis in (1, 2):
        np.testing.assert_allclose(matrices.sum(axis=axis), 1, atol=1e-3)
    assert (found[:, :4] < 1.001).all() and (found[:, 4:8] < 2.001).all() and (found > 0).all()


def test_mismatched_shapes_are_rejected_at_the_model_line():
    p = Tracer("test", {})
    x = p.input(width=8)
    with pytest.raises(PlanError, match="needs two results of cache_rows with 8 columns"):
        p.attend_compressed(x, x, x, head_dim=8, scale=1.0, window=4, every=4, sinks="sinks")
    with pytest.raises(PlanError, match="for 3 streams and 1 iterations"):
        p.hyper_connections(x, "scale", "base", streams=3, iterations=1, eps=0.0)
    with pytest.raises(PlanError, match="which needs a positive one"):
        p.glu(x, x, "clipped")
    with pytest.raises(PlanError, match="among each 4-th"):
        p.indexer(x, x, head_dim=8, n=2, block=4, local=1, every=4)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("hyper_connection.count", 17, "at most 16 streams and 1000 Sinkhorn iterations"),
        ("attention.compress_rope_freq_base", 1.0, "rope base of compressed keys is 1; it must be above 1"),
        ("attention.head_count_kv", 2, "one KV head with K and V of equal size"),
        ("swiglu_clamp_shexp", [0.0] * 4, "limit the gates of all experts or of no expert"),
    ],
)
def test_file_of_another_family_is_rejected(key, value, message, tmp_path):
    tiny = FAMILIES["deepseek4"]
    path = write_tiny(replace(tiny, extra=tiny.extra | {key: value}), tmp_path / "tiny.gguf")
    with open_gguf(path) as file, pytest.raises(WoollyError, match=message):
        trace(file)
