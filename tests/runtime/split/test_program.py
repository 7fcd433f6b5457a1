"""A plan split between parts gives the bits of the whole, and keeps the protocol of a program."""

import itertools
import threading
from dataclasses import replace

import numpy as np
import pytest

from tests.cases.eagle3 import eagle3_tensors, write_eagle3
from tests.cases.families import FAMILIES
from tests.cases.mtp import MTP
from tests.cases.tiny import TINY, write_tiny
from tests.runtime.cuda.emulated import EmulatedDevice
from tests.runtime.cuda.models import TOKENS, logits
from woolly.errors import PlanError, UnsupportedError
from woolly.gguf import open_gguf
from woolly.models import draft_tensors, trace, trace_draft, trace_head
from woolly.plan.passes import FUSIONS, fuse, prune_rows, split_points
from woolly.runtime import Batch, CancelledRun, Options, PortableState, Ranks, get_backend
from woolly.runtime.cuda.backend import CudaBackend
from woolly.runtime.split import Segment, SplitProgram

OPTIONS = Options(threads=1, max_rows=64)
MIXTURE = FAMILIES["qwen3moe"]


def cpu(file, options=OPTIONS):
    return lambda plan: get_backend("cpu").compile(plan, file.tensors, options)


def emulated(file):
    return lambda plan: CudaBackend(EmulatedDevice).compile(plan, file.tensors, OPTIONS)


def segments_at(plan, cuts, parts=2):
    """Segments between these steps, which the parts take in turn."""
    edges = [0, *cuts, len(plan.steps)]
    return [Segment(i % parts, a, b) for i, (a, b) in enumerate(itertools.pairwise(edges))]


@pytest.fixture
def opened(tmp_path):
    files = []

    def get(tiny):
        files.append(open_gguf(write_tiny(tiny, tmp_path / f"{len(files)}.gguf")))
        return files[-1]

    yield get
    for file in files:
        file.close()


def allowed(plan, cuts, parts):
    """The cuts at which no two parts would share an entry of the state."""
    out = []
    for cut in cuts:
        try:
            SplitProgram(plan, segments_at(plan, [*out, cut], parts), [lambda _: pytest.skip()] * parts)
        except UnsupportedError:
            continue
        except pytest.skip.Exception:
            out.append(cut)
    return out


@pytest.mark.parametrize("name", sorted(FAMILIES)[::9])
def test_plan_split_anywhere_gives_the_bits_of_the_complete_plan(name, opened):
    file = opened(FAMILIES[name])
    plan = trace(file)
    segments = segments_at(plan, allowed(plan, split_points(plan)[1:], 2))  # one of OLMo, which has no norms to cut at
    split = SplitProgram(plan, segments, [cpu(file), cpu(file)][: len(segments)])
    whole = cpu(file)(plan)
    np.testing.assert_array_equal(logits(split, 33, 1, 7), logits(whole, 33, 1, 7))


def test_fused_steps_of_a_split_plan_equal_those_of_the_complete_plan(opened):
    plan = trace(file := opened(MIXTURE))
    split = SplitProgram(plan, segments_at(plan, split_points(plan)[1:], 2), [cpu(file), cpu(file)])
    assert len(split._runs) > 4
    assert split.running_plan == fuse(plan, [one_pass for one_pass in FUSIONS if one_pass is not prune_rows])
    for name in ("blk.0", "blk.1"):
        assert name in split.running_plan.layers


def test_parts_on_gpus_match_one_gpu(opened):
    plan = trace(file := opened(replace(MIXTURE, n_layers=2)))
    whole = logits(emulated(file)(plan), 8, 1, 2)
    split = SplitProgram(plan, segments_at(plan, split_points(plan)[1:], 2), [emulated(file), emulated(file)])
    np.testing.assert_array_equal(logits(split, 8, 1, 2).view(np.uint32), whole.view(np.uint32))
    assert split.about.backend == "cuda" and split.about.memory is not None


def test_experts_on_the_cpu_are_close_to_the_reference_and_deterministic(opened):
    plan = trace(file := opened(MIXTURE))
    points = [*split_points(plan), len(plan.steps)]
    edges = [i for i, step in enumerate(plan.steps) if step.op == "moe"]
    cuts = sorted({edge for i in edges for edge in (max(p for p in points if p <= i), min(p for p in points if p > i))})
    split = SplitProgram(plan, segments_at(plan, cuts), [emulated(file), cpu(file)])
    assert split.about.level == f"sm_{EmulatedDevice.architecture}+{get_backend('cpu').levels[0]}"
    got = logits(split, 8, 1, 2)
    np.testing.assert_array_equal(got, logits(split, 11))
    exact = logits(get_backend("reference").compile(plan, file.tensors, Options()), 11)
    assert np.linalg.norm(got - exact) < 0.02 * np.linalg.norm(exact)


def test_pages_and_slots_are_copied_between_equal_states(opened):
    plan = trace(file := opened(FAMILIES["qwen3next"]))
    cuts = allowed(plan, split_points(plan)[1:], 2)
    program = SplitProgram(plan, segments_at(plan, cuts), [cpu(file), cpu(file)])
    one, other = program.new_state(2, 3), program.new_state(2, 3)
    program.run(Batch.of([(TOKENS[:8], 0, [1])], slots=[(-1, 0)]), one)
    assert isinstance(one, PortableState) and one.is_portable
    assert one.n_bytes == 2 * one.page_bytes + 3 * one.slot_bytes == cpu(file)(plan).new_state(2, 3).n_bytes
    other.write_page(0, one.read_page(1))
    other.write_slot(2, one.read_slot(0))
    more = TOKENS[8:10], 8
    want = program.run(Batch.of([(*more, [1])], slots=[(0, 1)]), one).copy()
    np.testing.assert_array_equal(program.run(Batch.of([(*more, [0])], slots=[(2, 1)]), other), want)
    for write in (one.write_page, one.write_slot):
        with pytest.raises(ValueError, match="not as many as the cache keeps"):
            write(0, np.zeros(3, np.uint8))


def test_draft_runs_in_the_part_with_the_head(tmp_path):
    with open_gguf(write_tiny(next(iter(MTP.values())), tmp_path / "mtp.gguf")) as file:
        plan = trace(file)
        plan = replace(plan, draft=trace_draft(file, plan))
        whole = cpu(file)(plan)
        split = SplitProgram(plan, segments_at(plan, [split_points(plan)[3]]), [cpu(file), cpu(file)])
        assert split.draft is not None and split.draft.running_plan == whole.draft.running_plan
        hidden = np.random.RandomState(3).randn(5, plan.values[plan.steps[0].output].width).astype(np.float32)
        batch = replace(Batch.of([(TOKENS[:5], 0, [0])], range(5)), hidden=hidden)
        got, want = (program.draft.run(batch, program.draft.new_state(1)) for program in (split, whole))
        np.testing.assert_array_equal(got, want)


def test_head_reads_layers_of_a_split_plan(tmp_path):
    tiny = replace(TINY["llama"], n_layers=5)
    head = write_eagle3(tmp_path / "head.gguf", eagle3_tensors(), [0, 1, 2])
    with open_gguf(write_tiny(tiny, tmp_path / "target.gguf")) as file, open_gguf(head) as other:
        plan = trace_head(file, trace(file), other)
        tensors = {**file.tensors, **draft_tensors(other)}

        def compiled(plan):
            return get_backend("cpu").compile(plan, tensors, OPTIONS)

        cuts = allowed(plan, split_points(plan)[1:], 2)
        assert len(cuts) > 3
        programs = compiled(plan), SplitProgram(plan, segments_at(plan, cuts), [compiled, compiled])
        batch, out = Batch.of([(TOKENS[:9], 0, [0])], range(9)), []
        for program in programs:
            state, steps = program.new_state(1), program.running_plan.steps
            at = 1 + next(i for i, step in enumerate(steps) if plan.features in step.outputs)
            out.append((program.run(batch, state, 0, at).copy(), program.run(batch, state, at).copy()))
        for got, want in zip(*out, strict=True):
            np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(logits(programs[1], 9), logits(compiled(trace(file)), 9))


def test_run_stops_between_parts_and_rejects_a_missing_start(opened):
    plan = trace(file := opened(TINY["llama"]))
    stopped = threading.Event()

    class Stopping:
        """The first part; the run is cancelled when it is done."""

        def __init__(self, program):
            self.__dict__.update(vars(program))
            self.program = program

        def __getattr__(self, name):
            return getattr(self.program, name)

        def run(self, *arguments):
            out = self.program.run(*arguments)
            if stopped.is_set():
                split.cancel()
            return out

    segments = segments_at(plan, [split_points(plan)[3]])
    split = SplitProgram(plan, segments, [lambda own: Stopping(cpu(file)(own)), cpu(file)])
    edge = split._ranges[0][1]
    with pytest.raises(PlanError, match="start at an earlier step"):
        split.run(Batch.of([([1], 0, [0])]), split.new_state(1), edge)
    want = logits(split, 5)
    stopped.set()
    with pytest.raises(CancelledRun):
        logits(split, 5)
    stopped.clear()
    np.testing.assert_array_equal(logits(split, 5), want)


def test_last_reference_frees_all_gpus(opened):
    plan = trace(file := opened(TINY["llama"]))
    devices = [EmulatedDevice(), EmulatedDevice()]

    def on(device):
        return lambda own: CudaBackend(lambda: device).compile(own, file.tensors, OPTIONS)

    program = SplitProgram(plan, segments_at(plan, [split_points(plan)[3]]), [on(device) for device in devices])
    state = program.new_state(2)
    assert all(device._sizes for device in devices)
    del program, state
    assert not any(device._sizes for device in devices)  # without a collection of garbage


def test_unsplittable_plan_gives_a_one_line_error(opened):
    plan = trace(opened(TINY["llama"]))
    impossible = next(at for at in range(len(plan.steps)) if at not in split_points(plan))
    with pytest.raises(UnsupportedError, match=r"this llama model cannot be split there: .* more than one value"):
        SplitProgram(plan, segments_at(plan, [impossible]), [])
    shared = trace(opened(FAMILIES["gemma3n"]))
    with pytest.raises(UnsupportedError, match=r"cannot be split there: .* (more than one value|the cache of a layer)"):
        SplitProgram(shared, segments_at(shared, [len(shared.steps) // 2]), [])
    with pytest.raises(PlanError, match="not the steps of the plan"):
        SplitProgram(plan, [Segment(0, 0, 3), Segment(1, 4, len(plan.steps))], [])


def test_part_that_fails_to_compile_leaves_nothing_behind(opened):
    plan = trace(file := opened(TINY["llama"]))
    closed = []

    def first(own):
        program = cpu(file)(own)
        program.close = lambda: closed.append(program)
        return program

    def fails(own):
        raise UnsupportedError("no kernel")

    with pytest.raises(UnsupportedError, match="no kernel"):
        SplitProgram(plan, segments_at(plan, [split_points(plan)[3]]), [first, fails])
    assert len(closed) == 1


def test_part_that_computes_logits_ranks_them(opened):
    plan = trace(file := opened(TINY["llama"]))
    points = split_points(plan)
    split = SplitProgram(plan, segments_at(plan, [points[len(points) // 2]]), [cpu(file), emulated(file)])
    batch, state = Batch.of([(TOKENS[:5], 0, [0])], range(5)), split.new_state(1)
    whole = split.run(batch, state).copy()
    for first in (0, 1, split._ranges[-1][0], split._ranges[-1][0] + 1):
        if first:
            split.run(batch, state, 0, first)
        ranking = split.rank(batch, state, 40, first)
        np.testing.assert_array_equal(ranking.ids[:, 0], whole.argmax(axis=1))
        np.testing.assert_array_equal(ranking.rows(1, 3), whole[1:3])
    assert isinstance(split, Ranks)
    assert not isinstance(SplitProgram(plan, segments_at(plan, [points[1]]), [emulated(file), cpu(file)]), Ranks)
