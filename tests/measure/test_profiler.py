"""An examination accounts for the whole time of each run, and its probes measure what they say. No time is asserted."""

import itertools
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from tests.cases.moe import MOES
from woolly._native import kernel_levels
from woolly.errors import RequestError
from woolly.gguf import open_gguf
from woolly.machine.cpu import cpu_name
from woolly.measure.bench import StepCost
from woolly.measure.diagnosis import Limits, Run, StepGroup, advise
from woolly.measure.kernel_probe import Probe, cached_columns
from woolly.measure.profiler import _Profiler, profile_model
from woolly.measure.time_bounds import PARTS, Bounds, target_bits
from woolly.models import trace
from woolly.plan import Paged, Tracer
from woolly.plan.passes import fuse
from woolly.quant import GGMLType
from woolly.quantize.describe import describe_model, mean_bits, mixture
from woolly.runtime import About, Options


@pytest.fixture(scope="module")
def found(tiny_model):
    return profile_model(tiny_model, Options(threads=2), n_prompt=64, n_sequences=3)


def test_parts_cover_a_model_with_its_bytes_and_flops(found, tiny_model):
    s = found.situation
    assert (s.prompt.name, s.one.n_tokens, s.several.n_tokens) == ("pp64", 1, 3)
    for run in (s.prompt, s.one, s.several):
        assert [part.name for part in run.parts] == [name for name in PARTS if name not in ("experts", "recurrence")]
        assert run.limit > 0
        assert all(part.seconds > 0 for part in run.parts)
        assert {part.name for part in run.parts if not part.limits.bound} == {"other"}
    with open_gguf(tiny_model) as file:
        logits = file.tensors["output.weight"]
        assert s.one.part("logits").macs == logits.n_elements
        assert s.several.part("logits").macs == 3 * logits.n_elements
        assert s.one.part("logits").n_bytes == s.several.part("logits").n_bytes
        assert s.weight_bytes == sum(
            t.n_bytes for n, t in file.tensors.items() if len(t.shape) == 2 and n != "token_embd.weight"
        )
    assert s.kept_bytes >= s.weight_bytes
    assert advise(s).why


def test_f32_weights_are_offered_a_smaller_mix(found):
    s = found.situation
    assert s.bits == pytest.approx(32)
    assert s.target_bits < 12
    assert all(
        part.after["quantization"].memory < part.limits.memory for part in s.one.parts if part.name == "gate, up"
    )


def test_weights_over_a_budget_are_counted_and_timed(tiny_model):
    s = profile_model(tiny_model, Options(threads=1, weight_memory=1000), n_prompt=16, n_sequences=2, depth=8).situation
    assert s.kept_bytes <= 1000
    assert s.depth == 8
    assert s.packing_seconds >= 0


def test_fewer_threads_are_compared_with_all_cores(tiny_model, monkeypatch):
    monkeypatch.setattr("woolly.measure.profiler.default_threads", lambda: 3)
    s = profile_model(tiny_model, Options(threads=1), n_prompt=16, n_sequences=2).situation
    assert (s.threads, s.cores) == (1, 3)
    assert all("threads" in part.after for part in s.one.parts)
    assert min(s.cores_seconds) > 0


def test_too_large_weights_are_not_prepared_twice(tiny_model, monkeypatch):
    monkeypatch.setattr("woolly.measure.profiler.default_threads", lambda: 2)
    monkeypatch.setattr("woolly.measure.profiler._MAX_REPACKED_BYTES", 1000)
    s = profile_model(tiny_model, Options(threads=1), n_prompt=16, n_sequences=2).situation
    assert s.cores_seconds is None
    assert all("threads" in part.after for part in s.one.parts)


def test_more_than_the_context_is_rejected(tiny_model):
    with pytest.raises(RequestError, match="context is 512"):
        profile_model(tiny_model, Options(threads=1), n_prompt=64, depth=400)


@pytest.mark.parametrize("level", kernel_levels())
def test_probe_measures_any_type_row_count_and_isa(level):
    probe = Probe(2, level)
    assert probe.linear_rate(GGMLType.Q4_K, 256, 1) > 0
    assert probe.linear_rate(GGMLType.Q8_0, 96, 70) > 0
    assert probe.linear_rate(GGMLType.F32, 48, 4) > 0
    assert probe.packing_seconds(GGMLType.Q4_K, 256) >= 0


@pytest.mark.parametrize("type", [GGMLType.Q4_K, GGMLType.Q8_0, GGMLType.F16, GGMLType.F32])
@pytest.mark.parametrize("columns", [256, 768, 4864, 14336, 53248])
def test_probe_weights_fit_half_of_the_l2_cache(type, columns, monkeypatch):
    sizes = []
    probe = Probe(2, kernel_levels()[0])
    monkeypatch.setattr(probe, "_compile", lambda plan, tensors, *_: sizes.append(tensors["w.weight"]) or 1 / 0)
    for measure in (lambda: probe.linear_rate(type, columns, 1), lambda: probe.packing_seconds(type, columns)):
        with pytest.raises(ZeroDivisionError):
            measure()
    assert len(sizes) == 2
    for weights in sizes:
        assert weights.n_bytes <= 2 * (512 << 10)
        assert weights.shape[1] == columns or (weights.shape[1] % 256 == 0 and weights.shape[1] < columns)
        assert weights.shape[0] >= 2 * 16 * 16  # enough panels to share out


def test_columns_are_split_only_if_they_do_not_fit():
    assert cached_columns(GGMLType.Q4_K, 3584) == 3584
    assert cached_columns(GGMLType.Q4_K, 14336) == 3584
    assert cached_columns(GGMLType.F16, 14336) == 1024
    assert cached_columns(GGMLType.F32, 500) == 500


def test_split_row_is_measured_once_for_all_lengths(monkeypatch):
    probe, seen = Probe(1, kernel_levels()[0]), []
    monkeypatch.setattr(probe, "_linear_seconds", lambda type, columns, *_: seen.append(columns) or 1.0)
    assert probe.linear_rate(GGMLType.F16, 14336, 32) == probe.linear_rate(GGMLType.F16, 8192, 32)
    assert seen == [1024]


@pytest.mark.parametrize("kv_type", ["f16", "f32", "q8_0"])
def test_probe_measures_attention_over_all_layers(kv_type):
    layers = (Paged(2, 32, 32), Paged(2, 32, 32))
    assert Probe(2, kernel_levels()[0], kv_type).attention_seconds(layers, 4, 100) > 0
    assert Probe(1, kernel_levels()[0], kv_type).attention_seconds((), 4, 100) == 0


def test_run_without_clock_progress_does_not_count():
    class Clock:
        nanoseconds = iter([0, 0, 3000, 0, 2000, 4000] + [5000] * 100_000)

        def run(self, batch, state):
            pass

        @contextmanager
        def timed(self):
            yield [next(self.nanoseconds)]

    assert Probe(1, None)._fastest(Clock(), None, None, [0]) == 2e-6
    Clock.nanoseconds = itertools.repeat(0)
    assert Probe(1, None)._fastest(Clock(), None, None, [0]) == 0


class Even:
    """A probe of which every kernel adds up so many products per second."""

    def __init__(self, rate):
        self.rate = rate

    def linear_rate(self, type, columns, n_rows):
        return self.rate


def test_limits_are_bytes_over_bandwidth_and_flops_over_rate(tiny_model):
    with open_gguf(tiny_model) as file:
        steps = fuse(trace(file)).steps
    down = next(step for step in steps if step.part == "down")
    n = 64 * 96
    cost = StepCost(down, n_rows=6, seconds=1.0, n_bytes=2 * 4 * n, macs=6 * n)
    limits = Bounds(1000.0, Even(100.0)).limits([cost], n_rows=3, n_runs=2)
    assert limits.memory == pytest.approx(4 * n / 1000)
    assert limits.arithmetic == pytest.approx(3 * n / 100)
    smaller = Bounds(1000.0, Even(100.0), smaller=True).limits([cost], n_rows=3, n_runs=2)
    assert smaller.memory == pytest.approx(5.5 / 8 * n / 1000)  # 96 columns fill no block of 256: Q5_0


def test_attention_limit_uses_its_batch_of_rows(tiny_model):
    with open_gguf(tiny_model) as file:
        attend = next(step for step in fuse(trace(file)).steps if step.op == "attend")
    cost = StepCost(attend, n_rows=512, seconds=1.0, n_bytes=1, macs=12800)
    by_rows = SimpleNamespace(linear_rate=lambda type, columns, n_rows: float(n_rows))
    bounds = Bounds(1e9, by_rows)
    assert bounds.limits([cost], 512, 1, 512).arithmetic == 12800 / 128  # a prompt
    assert bounds.limits([cost], 512, 1, 3).arithmetic == 12800 / 12
    assert bounds.limits([cost], 512, 1).arithmetic == 12800 / 4  # a token of each of 512 sequences


def test_prompt_attention_has_the_limit_of_many_rows(tiny_model, monkeypatch):
    asked = []
    monkeypatch.setattr(Bounds, "float_rate", lambda self, n_tokens: asked.append(n_tokens) or 1e9)
    profile_model(tiny_model, Options(threads=1), n_prompt=64, n_sequences=3, seconds=60)
    assert set(asked) == {1, 64}


def test_only_experts_of_a_token_count_as_read_and_prepared(tiny_model):
    experts = MOES["two-of-8"]
    tensors = experts.make(np.random.default_rng(1), 8)
    tracer = Tracer("moe", tensors)
    tracer.output(tracer.output_rows(experts.build(tracer)))
    kept = SimpleNamespace(n_bytes=0)
    about = About("cpu", kernel_levels()[0], threads=1, arena_bytes=0)
    program = SimpleNamespace(running_plan=fuse(tracer.plan()), weight_stats=lambda: kept, about=about, max_rows=8)
    run = Run("x", 1, (StepGroup("experts", 1.0, Limits(0.5, 0.5)),))
    probe = SimpleNamespace(linear_rate=lambda *_: 1.0, packing_seconds=lambda *_: 1e-9)
    with open_gguf(tiny_model) as file:
        examiner = _Profiler(file, program, Options(), 8, 1, None, 1.0, lambda text: None)
        s = examiner._examination([run] * 3, Bounds(1e9, probe), 10**9).situation
    router = 4 * 8 * experts.width
    all_experts = 4 * 8 * 3 * experts.ffn * experts.width
    assert s.weight_bytes == router + all_experts
    assert s.token_bytes == pytest.approx(router + all_experts / 4)
    assert s.packing_seconds == pytest.approx(1e-9 * s.token_bytes)


def test_model_and_machine_have_names(tiny_model):
    assert cpu_name()
    with open_gguf(tiny_model) as file:
        assert describe_model(file) == "llama 0.10 M F32"
        assert mixture(file) == "F32"
        assert mean_bits(file) == pytest.approx(32)
        assert target_bits(file) < 12
