"""Advice follows from measurements: each made-up machine has one thing wrong with it, and is told so, with a number."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from woolly.measure.diagnosis import Limits, Run, Situation, StepGroup, advise, candidates

BANDWIDTH = 20e9
GIGABYTES = 2.0


def run(name, n_tokens, memory, arithmetic, *, slack=1.05, after=None, attention=0.0):
    """Weights that take so many seconds to read and to compute, and attention that takes some of its own."""
    limits = Limits(memory, arithmetic)
    weights = StepGroup("gate, up", limits.seconds * slack, limits, int(memory * BANDWIDTH), 10**9, after or {})
    parts = [weights]
    if attention:
        parts.append(StepGroup("attention", attention, Limits(attention / 2, attention / 4), 10**6, 10**6))
    return Run(name, n_tokens, tuple(parts))


def situation(**changes):
    """A machine on which nothing is wrong: memory binds generation, arithmetic binds prompts and batches."""
    usual = Situation(
        prompt=run("pp512", 512, 0.1, 5.0),
        one=run("tg32", 1, 0.1, 0.05),
        several=run("tg32x8", 8, 0.1, 0.75),
        threads=4,
        cores=4,
        cores_seconds=None,
        level="neon",
        best_level="neon",
        bits=4.8,
        target_bits=4.8,
        target_type="Q4_K_M",
        kv_type="f16",
        kv_seconds={},
        depth=512,
        weight_bytes=int(GIGABYTES * 1e9),
        kept_bytes=int(GIGABYTES * 1e9),
        packing_seconds=0.0,
        available_bytes=8 * 10**9,
        busy=0.0,
        disk_bytes=0.0,
    )
    return replace(usual, **changes)


def after(name, memory, arithmetic):
    return {name: Limits(memory, arithmetic)}


def test_machine_at_its_limit_is_reported():
    advice = advise(situation())
    assert (advice.kind, advice.gain) == ("nothing", 1.0)
    assert "as fast as this machine can" in advice.why
    assert "memory" in advice.why


def test_parts_no_setting_can_change_are_not_called_the_machine_limit():
    slow = run("tg32", 1, 0.1, 0.05, slack=2.0)
    advice = advise(situation(one=slow, several=run("tg32x8", 8, 0.1, 1.6)))
    assert advice.kind == "nothing"
    assert "50%" in advice.why
    assert "Woolly's to gain" in advice.why


def test_fewer_threads_than_cores_advises_threads():
    # Twice the arithmetic, but only half as much again of bandwidth.
    advice = advise(
        situation(
            threads=2,
            prompt=run("pp512", 512, 0.1, 5.0, after=after("threads", 0.1 / 1.5, 2.5)),
            one=run("tg32", 1, 0.1, 0.05, after=after("threads", 0.1 / 1.5, 0.025)),
        )
    )
    assert advice.kind == "threads"
    assert "--threads 4" in advice.do
    assert (advice.prompt_gain, advice.token_gain) == (pytest.approx(2.0), pytest.approx(1.5))
    assert 1.5 < advice.gain < 2.0
    assert "prompts 2.00x, generation 1.50x" in advice.why


def test_gain_of_more_threads_is_measured_if_possible():
    advice = advise(situation(threads=2, cores_seconds=(5.25 / 1.9, 0.105 / 1.2)))
    assert advice.kind == "threads"
    assert (advice.prompt_gain, advice.token_gain) == (pytest.approx(1.9), pytest.approx(1.2))
    assert "measured here: prompts 1.90x, generation 1.20x" in advice.why


def test_more_threads_than_cores_advises_fewer():
    slower = after("threads", 0.08, 0.05)
    advice = advise(
        situation(
            threads=8,
            prompt=run("pp512", 512, 0.1, 5.0, after=after("threads", 0.1, 2.5)),
            one=run("tg32", 1, 0.1, 0.05, after=slower),
        )
    )
    assert advice.kind == "threads"
    assert "fewer" in advice.do


def test_memory_bound_f16_weights_advise_quantization_with_the_numbers():
    smaller = 4.85 / 16
    advice = advise(
        situation(
            bits=16.0,
            target_bits=4.85,
            prompt=run("pp512", 512, 0.1, 5.0, after=after("quantization", 0.1 * smaller, 5.0)),
            one=run("tg32", 1, 0.1, 0.02, after=after("quantization", 0.1 * smaller, 0.02)),
        )
    )
    assert advice.kind == "quantization"
    assert "Q4_K_M" in advice.do
    assert advice.token_gain == pytest.approx(16 / 4.85)
    assert "16.0 to 4.8 bits per weight: 2.00 GB become 0.61 GB" in advice.why


def test_gain_of_quantization_is_limited_by_arithmetic():
    advice = advise(
        situation(
            bits=16.0,
            target_bits=4.0,
            one=run("tg32", 1, 0.1, 0.08, after=after("quantization", 0.025, 0.08)),
            prompt=run("pp512", 512, 0.1, 5.0, after=after("quantization", 0.1, 5.0)),
        )
    )
    assert advice.token_gain == pytest.approx(0.1 / 0.08)


def test_weights_over_the_budget_advise_memory():
    slow = run("tg32", 1, 0.1, 0.05, slack=1.8)
    advice = advise(situation(one=slow, kept_bytes=int(0.5e9), packing_seconds=0.06))
    assert advice.kind == "memory"
    assert "--weight-memory" in advice.do
    assert "1.50 of 2.00 GB" in advice.why
    assert "60 of the 180 ms of a token" in advice.why
    assert advice.token_gain == pytest.approx(0.18 / 0.12)


def test_gain_of_prepared_weights_is_within_the_limit():
    slow = run("tg32", 1, 0.1, 0.05, slack=1.8)
    advice = advise(situation(one=slow, kept_bytes=0, packing_seconds=1e6))
    assert advice.kind == "memory"
    assert (advice.token_gain, advice.prompt_gain) == (pytest.approx(1.8), pytest.approx(1.05))
    assert "80 of the 180 ms of a token" in advice.why


def test_prompt_prepares_all_experts_and_a_token_its_own():
    slow = {"one": run("tg32", 1, 0.1, 0.05, slack=1.8), "prompt": run("pp512", 512, 0.1, 5.0, slack=1.2)}
    advice = advise(situation(**slow, kept_bytes=0, packing_seconds=0.06, used_share=0.1))
    assert advice.token_gain == pytest.approx(0.18 / 0.12)
    assert advice.prompt_gain == pytest.approx(6.0 / 5.4)


def test_only_the_experts_of_a_token_are_read():
    found = situation(bits=16.0, target_bits=4.0, used_share=0.25, disk_bytes=6e6)
    assert found.token_bytes == 0.5e9
    whys = {advice.kind: advice.why for advice in candidates(replace(found, one=run("tg32", 1, 0.1, 0.05, slack=3)))}
    assert "6 MB from the disk" in whys["memory"]  # more than a hundredth of what a token needs
    found = replace(found, one=run("tg32", 1, 0.1, 0.05, after=after("quantization", 0.025, 0.05)))
    whys = {advice.kind: advice.why for advice in candidates(found)}
    assert "0.50 GB become 0.12 GB to read per token" in whys["quantization"]


def test_reading_from_disk_advises_memory():
    advice = advise(situation(disk_bytes=1.5e9, one=run("tg32", 1, 0.1, 0.05, slack=12), available_bytes=10**8))
    assert advice.kind == "memory"
    assert "1500 MB from the disk" in advice.why
    assert advice.token_gain == pytest.approx(12)


def test_busy_machine_is_distinguished_from_a_slow_one():
    advice = advise(situation(busy=0.5))
    assert (advice.kind, advice.gain) == ("busy", pytest.approx(2.0))
    assert "50%" in advice.why


def test_isa_below_the_machine_advises_kernels():
    advice = advise(
        situation(
            level="scalar",
            prompt=run("pp512", 512, 0.1, 50.0, after=after("kernels", 0.1, 5.0)),
            one=run("tg32", 1, 0.1, 1.0, after=after("kernels", 0.1, 0.05)),
        )
    )
    assert (advice.kind, advice.token_gain) == ("kernels", pytest.approx(10.0))
    assert "WOOLLY_ISA" in advice.do


def test_long_context_with_a_faster_cache_type_advises_that_type():
    long = run("tg32", 1, 0.01, 0.005, attention=0.3)
    advice = advise(situation(one=long, depth=32768, kv_seconds={"f16": 0.3, "q8_0": 0.12, "f32": 0.6}))
    assert advice.kind == "kv_type"
    assert "--kv-type q8_0" in advice.do
    assert advice.token_gain == pytest.approx(long.seconds / (long.seconds - 0.3 * 0.6))


def test_4_bits_are_advised_with_the_command_that_measures_their_loss():
    long = run("tg32", 1, 0.01, 0.005, attention=0.3)
    advice = advise(situation(one=long, depth=32768, kv_seconds={"f16": 0.3, "q8_0": 0.2, "q4": 0.1}))
    assert "--kv-type q4" in advice.do
    assert "less exact: woolly perplexity --kv-type q4 --kl shows how much" in advice.why


def test_long_context_with_the_fastest_type_advises_a_shorter_context():
    long = run("tg32", 1, 0.01, 0.005, attention=0.3)
    advice = advise(situation(one=long, depth=32768, kv_seconds={"f16": 0.3, "q8_0": 0.4}))
    assert advice.kind == "context"
    assert "16384 tokens instead of 32768" in advice.do
    assert advice.token_gain == pytest.approx(long.seconds / (long.seconds - 0.15))


def test_batching_is_advised_if_nothing_else_helps():
    advice = advise(situation(several=run("tg32x8", 8, 0.1, 0.2)))
    assert advice.kind == "batch"
    assert advice.gain == pytest.approx(8 * 0.105 / 0.21)
    assert "serve 8 requests at once" in advice.do


def test_larger_gain_is_the_advice_and_the_other_stays_a_candidate():
    both = situation(
        busy=0.5,
        threads=2,
        prompt=run("pp512", 512, 0.1, 5.0, after=after("threads", 0.1, 4.5)),
        one=run("tg32", 1, 0.1, 0.05, after=after("threads", 0.09, 0.05)),
    )
    assert advise(both).kind == "busy"
    assert [advice.kind for advice in candidates(both)] == ["busy", "threads"]


def test_part_is_bound_by_the_slower_resource():
    assert Limits(2.0, 1.0).bound == "memory"
    assert Limits(1.0, 2.0).bound == "arithmetic"
    assert Limits(0.0, 0.0).bound == ""
    part = StepGroup("down", 4.0, Limits(2.0, 1.0))
    assert part.reached == 0.5
    whole = Run("tg1", 1, (part, StepGroup("other", 1.0, Limits(0.0, 0.0))))
    assert (whole.rate, whole.best_rate, whole.bound) == (0.2, 0.5, "memory")


positive = st.floats(1e-6, 1e3)


@given(
    seconds=st.tuples(*[positive] * 6),
    threads=st.integers(1, 8),
    bits=st.floats(2, 16),
    busy=st.floats(0, 0.9),
    attention=st.floats(0, 10),
    depth=st.integers(0, 1 << 17),
    kept=st.floats(0, 1),
)
def test_promised_gain_is_between_zero_and_the_computed_one(seconds, threads, bits, busy, attention, depth, kept):
    memory, arithmetic, other_memory, other_arithmetic, packing, disk = seconds
    changes = {name: Limits(other_memory, other_arithmetic) for name in ("threads", "quantization")}
    found = situation(
        prompt=run("pp512", 512, memory, arithmetic, after=changes),
        one=run("tg32", 1, memory, arithmetic, after=changes, attention=attention),
        threads=threads,
        bits=bits,
        busy=busy,
        depth=depth,
        kept_bytes=int(kept * GIGABYTES * 1e9),
        packing_seconds=packing,
        disk_bytes=disk,
    )
    listed = candidates(found)
    advice = advise(found)
    assert advice.gain >= 1.0
    for one in listed:
        if one.kind == "memory":
            assert one.token_gain <= 1.001 * max(1.0, found.one.seconds / found.one.limit)
            assert one.prompt_gain <= 1.001 * max(1.0, found.prompt.seconds / found.prompt.limit)
    assert all(one.gain >= other.gain for one, other in pairwise(listed))
    assert advice.kind in {one.kind for one in listed} | {"batch", "nothing"}
    assert advice.do
    assert advice.why
