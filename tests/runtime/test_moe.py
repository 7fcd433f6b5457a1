"""Expert routing: what it means, that an expert is a linear like any other, and that no row sees another."""

import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases.moe import MOES, Experts
from tests.cases.ops import N_TOKENS, CaseTracer
from tests.cases.weights import Raw, random_weight
from woolly import _native
from woolly.errors import PlanError, UnsupportedError
from woolly.gguf import GGUFWriter, open_gguf
from woolly.measure.bench import Bench, Workload
from woolly.measure.time_bounds import Bounds
from woolly.plan import Plan, show
from woolly.plan.passes import FUSIONS, fuse
from woolly.plan.passes.plan_memory import barriers, plan_memory
from woolly.quant import GGMLType
from woolly.runtime import Batch, Options, get_backend
from woolly.runtime.reference.moe import expert_weights

LEVELS, T = _native.kernel_levels(), GGMLType
TOKENS = np.random.RandomState(3).randint(0, N_TOKENS, 150)


class Mixture:
    """A file with one moe step, and its programs."""

    def __init__(self, experts, folder):
        self.experts = experts
        self.tensors = experts.make(np.random.default_rng(5), N_TOKENS)
        self.file = write(folder / "moe.gguf", self.tensors)
        self.plan = plan_of(self.file, experts.build)

    def program(self, backend="cpu", **options):
        return get_backend(backend).compile(self.plan, self.file.tensors, Options(**options))


def write(path, tensors):
    writer = GGUFWriter(path)
    for name, raw in tensors.items():
        writer.add_raw_tensor(name, raw.type, raw.shape, raw.data)
    writer.write()
    return open_gguf(path)


def plan_of(file, build) -> Plan:
    tracer = CaseTracer("moe", file.tensors)
    tracer.output(build(tracer))
    return tracer.plan()


def run(program, tokens=TOKENS):
    batch = Batch.of([(tokens, 0, range(5))], [])
    return program.run(batch, program.new_state(5)).copy()


@pytest.fixture(scope="module")
def mixtures(tmp_path_factory):
    made = {}

    def get(name):
        if name not in made:
            experts = MOES[name] if isinstance(name, str) else name
            made[name] = Mixture(experts, tmp_path_factory.mktemp("moe"))
        return made[name]

    yield get
    for mixture in made.values():
        mixture.file.close()


def one_by_one(experts: Experts, tensors: dict[str, Raw], tokens):
    """A plain loop over rows and their experts, in f64."""
    values = {name: raw.values().astype(np.float64) for name, raw in tensors.items()}
    out = []
    for token in tokens:
        x = values["x.weight"][token]
        if experts.norm:
            x = x / np.sqrt(np.mean(x * x) + 1e-5) * values["norm.weight"]
        logits = values["router.weight"] @ x + values.get("router.bias", 0.0)
        logits = experts.cap * np.tanh(logits / experts.cap) if experts.cap else logits
        ranked = sorted(range(experts.n_experts), key=lambda e: (-logits[e], e))[: experts.n_used]
        sigmoids, shares = 1 / (1 + np.exp(-logits)), np.exp(logits) / np.exp(logits).sum()
        scores = sigmoids if experts.scoring == "sigmoid" else shares
        if experts.scoring == "sparsemixer":
            scores = mixed(logits, ranked)
        total = sum(scores[e] for e in ranked) + 1e-20 if experts.normalize else 1.0
        y = np.zeros_like(x)
        for e in ranked:
            share = experts.weights_scale * scores[e] / total
            into, out_of = (share, 1.0) if experts.weigh == "input" else (1.0, share)
            gate, up, down = (values[f"{name}.weight"][e // experts.shared] for name in ("gate", "up", "down"))
            gated = gate @ (into * x)
            y += out_of * (down @ (gated / (1 + np.exp(-gated)) * (up @ (into * x))))
        y *= experts.scale
        out.append(y + values["r.weight"][token] if experts.residual else y)
    return np.array(out)


def mixed(logits, ranked):
    """The share of each chosen expert among those near it that are not chosen before it."""
    out = {}
    for best in ranked:
        top = logits[best]
        gaps = {e: top - x for e, x in enumerate(logits) if e not in out}
        out[best] = 1 / sum(np.exp(-gap) for e, gap in gaps.items() if gap <= 0.02 * max(abs(logits[e]), top))
    return out


@pytest.mark.parametrize("name", [name for name in MOES if name != "sigmoid-next-to-zero"])
def test_reference_is_a_loop_over_rows_and_their_experts(name, mixtures):
    mixture = mixtures(name)
    got = run(mixture.program("reference"))
    want = one_by_one(mixture.experts, mixture.tensors, TOKENS)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())


def test_all_zero_scores_give_no_nan(mixtures):
    mixture = mixtures("sigmoid-next-to-zero")
    for backend in ("reference", "cpu"):
        assert (run(mixture.program(backend)) == 0).all()


def by_linears(experts, tensors, folder, level, weight_of):
    """Result of a program of `linears` for each expert, summed as documented."""
    total = np.zeros((len(TOKENS), experts.width), np.float32)
    for e in range(experts.n_experts):
        parts = {"x.weight": tensors["x.weight"]} | ({"norm.weight": tensors["norm.weight"]} if experts.norm else {})
        for name in ("gate.weight", "up.weight", "down.weight"):
            raw = tensors[name]
            parts[name] = replace(raw, shape=raw.shape[1:], data=raw.data.reshape(raw.shape[0], -1)[e])

        def build(p):
            x = p.embed("x")
            x = p.rms_norm(x, "norm", eps=1e-5) if experts.norm else x
            return p.linear(p.glu(p.linear(x, "gate"), p.linear(x, "up")), "down")

        with write(folder / f"{e}.gguf", parts) as file:
            program = get_backend("cpu").compile(plan_of(file, build), file.tensors, Options(threads=1, level=level))
            y = run(program, TOKENS)
        weight = weight_of[:, e, None]
        np.add(total, weight * y, out=total, where=weight != 0)
    if experts.residual:
        total = tensors["r.weight"].values()[TOKENS] + total
    return total


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("n_used", [1, 2, 4])
@pytest.mark.parametrize("type", [T.F32, T.F16, T.Q8_0, T.Q4_K, T.Q6_K], ids=lambda t: t.name)
def test_expert_matches_linears(type, n_used, level, tmp_path):
    # With one expert for a row, or several of equal logits, normalized weights are exact: 1, 1 / 2, 1 / 4.
    experts = Experts(
        5,
        n_used,
        (type,) * 3,
        width=256,
        ffn=256,
        normalize=True,
        norm=True,
        residual=n_used == 2,
        logits=None if n_used == 1 else (0.5, 0.0, 0.5, 0.5, 0.5) if n_used == 4 else (0.0, 1.0, 0.0, 1.0, 1.0),
    )
    mixture = Mixture(experts, tmp_path)
    logits = one_normed(mixture.tensors) @ mixture.tensors["router.weight"].values().T
    logits = logits + np.array(experts.logits or 0, np.float32)
    step = mixture.plan.steps[-2 if experts.residual else -1]
    want = by_linears(experts, mixture.tensors, tmp_path, level, expert_weights(step, logits))
    for threads in (1, 3):
        got = run(mixture.program(threads=threads, level=level))
        np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))
    mixture.file.close()


def one_normed(tensors):
    x = tensors["x.weight"].values()[TOKENS].astype(np.float64)
    x = x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + 1e-5) * tensors["norm.weight"].values()
    return x.astype(np.float32)


ROWS = ["two-of-8", "three-of-33", "sigmoid", "sparsemixer", "odd-sizes", "shared"]
ROWS += ["Q8_0", "norm-residual-Q4_K", "Q6_K", "Q4_K-Q8_0-Q6_K"]


@pytest.fixture(scope="module")
def alone(mixtures):
    """Each row of a mixture computed alone by one thread, and its programs of several threads."""
    made = {}

    def get(name):
        if name not in made:
            mixture = mixtures(name)
            programs = {threads: mixture.program(threads=threads, max_rows=150) for threads in (1, 2, 3)}
            single = np.concatenate([run(programs[1], [token]) for token in range(N_TOKENS)])
            made[name] = programs, single
        return made[name]

    return get


@pytest.mark.parametrize("name", ROWS)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_row_has_the_same_bits_for_all_rows_threads_and_chunks(name, alone, data):
    programs, single = alone(name)
    program = programs[data.draw(st.sampled_from([1, 2, 3]), "threads")]
    n = data.draw(st.sampled_from([1, 2, 3, 5, 8, 17, 33, 70, 150]), "rows")
    # Few tokens make many rows of one expert.
    tokens = data.draw(st.lists(st.integers(0, N_TOKENS - 1), min_size=1, max_size=8), "tokens")
    tokens = np.resize(tokens, n)
    chunk = data.draw(st.sampled_from([1, 4, 31, 150]), "chunk")
    got = np.concatenate([run(program, tokens[i : i + chunk]) for i in range(0, n, chunk)])
    np.testing.assert_array_equal(got.view(np.uint32), single[tokens].view(np.uint32))


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_weight_budget_changes_only_memory(share, mixtures, alone):
    mixture, (_, single) = mixtures("Q6_K"), alone("Q6_K")
    experts = mixture.experts
    sizes = [16 * experts.width * 4]  # the router's 8 rows take a panel of 16
    sizes += [mixture.file.tensors[f"{name}.weight"].n_bytes for name in ("gate", "up", "down")]
    budget = int(share * sum(sizes))
    program = mixture.program(threads=2, weight_memory=budget)
    for tokens in (TOKENS[:1], TOKENS):
        np.testing.assert_array_equal(run(program, tokens), single[tokens])
    stats = program.weight_stats()
    kept = {0.0: 0, 0.4: 2, 1.0: 4}[share]
    assert stats.n_bytes == sum(sizes[:kept])
    assert (stats.hits, stats.misses) == (2 * kept, 2 * (4 - kept))


def test_only_used_experts_are_packed_unless_ahead(mixtures):
    mixture = mixtures("all-to-one")
    program = mixture.program(threads=2)

    def done(name):
        return [program._native.panels_done(index) for index in program._steps.matrices[f"{name}.weight"]]

    run(program, TOKENS)
    panels = -(-mixture.experts.ffn // 16)
    assert done("gate") == done("up") == [0, 0, 0, panels, 0, 0]
    program.load_weights()
    total = 6 * (2 * panels + mixture.experts.width // 16)
    deadline = time.monotonic() + 60
    while sum(done("gate") + done("up") + done("down")) < total and time.monotonic() < deadline:
        time.sleep(0.001)
    program.close()
    assert done("gate") == [panels] * 6


def test_run_without_rows_gives_none(tmp_path):
    experts = MOES["two-of-8"]

    def build(p):
        x = p.output_rows(p.embed("x"))
        return p.moe(x, "router", "gate", "up", "down", n_experts=8, ffn=experts.ffn, n_used=2)

    with write(tmp_path / "moe.gguf", experts.make(np.random.default_rng(0), N_TOKENS)) as file:
        program = get_backend("cpu").compile(plan_of(file, build), file.tensors, Options(threads=2))
        assert run(program, TOKENS).shape == (0, experts.width)


@pytest.mark.parametrize("name", ["norm-scale-residual", "residual", "norm", "norm-residual-Q8_0"])
@pytest.mark.parametrize("n_passes", range(1, len(FUSIONS) + 1))
def test_norm_scale_and_residual_are_fused_without_changing_bits(name, n_passes, mixtures):
    mixture = mixtures(name)
    plan = mixture.plan
    for one_pass in FUSIONS[:n_passes]:
        plan = one_pass(plan)
    want = run(mixture.program("reference"))
    np.testing.assert_array_equal(
        run(get_backend("reference").compile(plan, mixture.file.tensors, Options()), TOKENS), want
    )
    n_tables = 1 + mixture.experts.residual
    assert len(fuse(mixture.plan).steps) == n_tables + 1


def test_steps_that_share_scratch_memory_wait_for_each_other(tmp_path):
    experts = MOES["two-of-8"]
    makes = [experts.make(np.random.default_rng(seed), N_TOKENS) for seed in (0, 1)]
    tensors = {f"{i}.{name}": raw for i, made in enumerate(makes) for name, raw in made.items()}
    del tensors["1.x.weight"]

    def build(p):
        x = p.embed("0.x")
        names = [[f"{i}.{name}" for name in ("router", "gate", "up", "down")] for i in (0, 1)]
        first, second = (p.moe(x, *four, n_experts=8, ffn=experts.ffn, n_used=2) for four in names)
        return first + second

    with write(tmp_path / "moe.gguf", tensors) as file:
        plan = plan_of(file, build)
        fused = fuse(plan)
        assert [step.op for step in fused.steps] == ["embed", "moe", "moe"]
        assert barriers(fused, plan_memory(fused, 150))[1:] == (True, True)
        results = [
            run(get_backend(backend).compile(plan, file.tensors, Options(threads=threads)), TOKENS)
            for backend, threads in (("reference", 1), ("cpu", 1), ("cpu", 3))
        ]
    np.testing.assert_allclose(results[1], results[0], rtol=1e-4, atol=1e-5 * np.abs(results[0]).max())
    np.testing.assert_array_equal(results[2], results[1])


def test_shared_expert_is_added_to_the_routed_ones(tmp_path):
    experts = MOES["norm"]
    tensors = experts.make(np.random.default_rng(0), N_TOKENS)
    tensors["shared.weight"] = random_weight(np.random.default_rng(1), T.F32, 48, 48)

    def build(p):
        x = p.embed("x")
        h = p.rms_norm(x, "norm", eps=1e-5)
        routed = p.moe(h, "router", "gate", "up", "down", n_experts=8, ffn=experts.ffn, n_used=2, normalize=True)
        return x + (routed + p.linear(h, "shared") * 0.5)

    with write(tmp_path / "moe.gguf", tensors) as file:
        plan = plan_of(file, build)
        reference = [
            run(get_backend("reference").compile(p, file.tensors, Options()), TOKENS) for p in (plan, fuse(plan))
        ]
        np.testing.assert_array_equal(*reference)
        got = run(get_backend("cpu").compile(plan, file.tensors, Options(threads=2)), TOKENS)
    np.testing.assert_allclose(got, reference[0], rtol=1e-4, atol=1e-5 * np.abs(got).max())


def test_costs_count_the_used_experts(mixtures):
    mixture = mixtures("two-of-8")
    width, ffn = mixture.experts.width, mixture.experts.ffn
    one, prompt = Workload("generation", 3), Workload("prompt", 20)
    bench = Bench(mixture.program(threads=2, max_rows=16), [one, prompt])
    step = bench.costs(one)[1][-1]
    assert step.macs == 3 * (8 * width + 2 * 3 * ffn * width)
    assert step.n_bytes == 3 * 4 * (8 * width + 2 * 3 * ffn * width)
    # Of 8 experts two are chosen by each of 16 rows, then of 4: each is left out by 3 / 4 of them.
    reached = 8 * (1 - 0.75**16) + 8 * (1 - 0.75**4)
    assert bench.costs(prompt)[1][-1].n_bytes == pytest.approx(4 * (2 * 8 * width + reached * 3 * ffn * width), abs=2)
    assert bench.profile(one)[0].name in {"router gate up down (F32)", "embed"}


def test_bounds_count_the_used_experts(mixtures):
    mixture = mixtures("two-of-8")
    work = Workload("generation", 3)
    _, costs = Bench(mixture.program(threads=1), [work]).costs(work)
    probe = SimpleNamespace(linear_rate=lambda type, columns, n_rows: 1e6 * n_rows)
    limits = Bounds(1e6, probe).limits(costs[-1:], 1, 3)
    assert limits.memory == pytest.approx(costs[-1].n_bytes / 3 / 1e6)
    assert limits.arithmetic == pytest.approx(costs[-1].macs / 3 / 1e6)


def test_plan_prints_the_step_with_its_weights_and_options(mixtures):
    line = show(mixtures("norm-scale-residual").plan).splitlines()[-3]
    assert "router.weight gate.weight up.weight down.weight" in line
    assert "n_used=2 scoring=softmax normalize=True weights_scale=1" in line


def refused(message, shapes=None, **changes):
    """Assert the tracer's error for mismatched shapes or options."""
    shapes = {"x": (9, 8), "router": (4, 8), "gate": (4, 6, 8), "up": (4, 6, 8), "down": (4, 8, 6)} | (shapes or {})
    tensors = {f"{name}.weight": Raw(T.F32, shape, np.zeros(0)) for name, shape in shapes.items() if name != "bias"}
    if "bias" in shapes:
        tensors["router.bias"] = Raw(T.F32, shapes["bias"], np.zeros(0))
    p = CaseTracer("moe", tensors)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=message + r".* \(test_moe\.py:\d+\)") as caught:
        p.moe(p.embed("x"), "router", "gate", "up", "down", **{"n_experts": 4, "ffn": 6, "n_used": 2} | changes)
    assert "\n" not in str(caught.value)


def test_mismatched_sizes_give_a_one_line_error():
    for n_used in (0, -1, 5):
        refused(f"moe uses {n_used} of 4 experts; expected 1 to 4", n_used=n_used)
    refused("moe got scoring 'argmax'; expected one of softmax, sigmoid, sparsemixer, sqrt_softplus", scoring="argmax")
    refused("moe got scoring 'sparsemixer' with normalize, select or", scoring="sparsemixer", normalize=True)
    for changes in ({"cap": 30.0}, {"shared": 2}):
        refused("moe of 4 experts with scoring 'sparsemixer' got a cap of", scoring="sparsemixer", **changes)
    refused("moe of 4 experts with scoring 'softmax' got a cap of 0, and 3 share", shared=3)
    refused("moe got a limit of 7 for gelu; expected 0, or a positive limit for silu", act="gelu", limit=7.0)
    refused("moe got a limit of -1 for silu; expected 0, or a positive limit for silu", limit=-1.0)
    refused(r"router\.weight has shape \(5, 8\), expected \(4, 8\)", {"router": (5, 8)})
    refused(r"router\.weight has shape \(4, 8\), expected \(5, 8\)", n_experts=5)
    refused(r"router\.weight has shape \(32,\), but a matrix is expected", {"router": (32,)})
    refused(r"router\.bias has 3 elements, but router\.weight has 4 rows", {"bias": (3,)})
    refused(r"gate\.weight has shape \(24, 8\), expected \(4, 6, 8\): experts, rows, columns", {"gate": (24, 8)})
    refused(r"up\.weight has shape \(3, 6, 8\), expected \(4, 6, 8\)", {"up": (3, 6, 8)})
    refused(r"down\.weight has shape \(4, 6, 8\), expected \(4, 8, 6\)", {"down": (4, 6, 8)})
    refused(r"gate\.weight has shape \(4, 6, 8\), expected \(4, 7, 8\)", ffn=7)


def test_experts_of_a_type_without_kernel_are_rejected_by_name(tmp_path):
    experts = Experts(2, 1, (T.F32, T.Q1_0, T.F32), width=256, logits=(0.0, 0.0))
    with (
        write(tmp_path / "moe.gguf", experts.make(np.random.default_rng(0), 4)) as file,
        pytest.raises(UnsupportedError, match=r"tensor 'up\.weight' is Q1_0, which is not supported yet"),
    ):
        get_backend("cpu").compile(plan_of(file, experts.build), file.tensors, Options())
