"""Mixture variants: biases and scales of experts, selection bias, groups, gates, router input."""

import numpy as np
import pytest

from tests.cases.ops import N_TOKENS, CaseTracer
from tests.cases.weights import Raw, random_vector, random_weight
from woolly import _native
from woolly.gguf import GGUFWriter, open_gguf
from woolly.plan.passes import fuse
from woolly.quant import GGMLType
from woolly.runtime import Batch, Options, get_backend

T = GGMLType
N, USED, WIDTH, FFN = 8, 2, 64, 32
TOKENS = np.random.RandomState(3).randint(0, N_TOKENS, 70)
CASES = {
    "select": {"select": True, "scoring": "sigmoid", "normalize": True},
    "select-softmax": {"select": True},
    "groups": {"groups": 4, "groups_used": 2, "normalize": True},
    "groups-select": {"groups": 4, "groups_used": 2, "select": True, "scoring": "sigmoid"},
    "biases": {"biases": True, "act": "clamped", "normalize": True},
    "limit": {"limit": 0.05, "biases": True},
    "scales": {"scales": True, "act": "gelu"},
    "merged": {"merged": True, "biases": True, "act": "relu"},
    "plain": {"plain": True, "act": "relu2"},
    "router": {"router": True, "normalize": True},
    "router-residual": {"router": True, "residual": True},
}


def make(case, type):
    """Tensors of a file, and the step."""
    rng = np.random.default_rng(11)
    inner = 2 * FFN if case.get("merged") else FFN
    shapes = {"up": (inner, WIDTH), "down": (WIDTH, FFN)}
    if not (case.get("merged") or case.get("plain")):
        shapes["gate"] = (FFN, WIDTH)
    tensors = {"router.weight": random_weight(rng, T.F32, N, WIDTH), "select.bias": random_vector(rng, N)}
    for name, (rows, columns) in shapes.items():
        raw = random_weight(rng, type, N * rows, columns)
        tensors[f"{name}.weight"] = Raw(type, (N, rows, columns), raw.data)
        if case.get("biases"):
            bias = rng.standard_normal((N, rows)).astype(np.float32)
            tensors[f"{name}.bias"] = Raw(T.F32, (N, rows), bias.view(np.uint8))
        if case.get("scales"):
            tensors[f"{name}.scale"] = random_vector(rng, N, 1.0)
    for name in ("x", "z", "r"):
        values = (0.15 * rng.standard_normal((N_TOKENS, WIDTH))).astype(np.float32)
        tensors[f"{name}.weight"] = Raw(T.F32, values.shape, values.view(np.uint8))

    def build(p):
        x, z, r = (p.embed(name) for name in ("x", "z", "r"))
        gate = "up" if case.get("merged") else None if case.get("plain") else "gate"
        known = ("scoring", "normalize", "act", "groups", "groups_used", "limit")
        options = {key: value for key, value in case.items() if key in known}
        options |= {"select": "select.bias"} if case.get("select") else {}
        options |= {"router_x": z} if case.get("router") else {}
        y = p.moe(x, "router", gate, "up", "down", n_experts=N, ffn=FFN, n_used=USED, **options)
        p.skip("z", "r", "select")
        return r + y if case.get("residual") else y

    return tensors, build


def open_case(folder, name, type):
    tensors, build = make(CASES[name], type)
    writer = GGUFWriter(folder / "moe.gguf")
    for key, raw in tensors.items():
        writer.add_raw_tensor(key, raw.type, raw.shape, raw.data)
    writer.write()
    file = open_gguf(writer.path)
    tracer = CaseTracer("moe", file.tensors)
    tracer.output(build(tracer))
    return file, tracer.plan()


def run(program, tokens):
    return program.run(Batch.of([(tokens, 0, range(3))], []), program.new_state(3)).copy()


@pytest.mark.parametrize("type", [T.F32, T.Q8_0, T.Q4_0], ids=lambda t: t.name)
@pytest.mark.parametrize("name", CASES)
def test_mixture_is_close_to_the_reference_and_the_same_for_every_row_thread_and_isa(name, type, tmp_path):
    file, plan = open_case(tmp_path, name, type)
    with file:
        want = run(get_backend("reference").compile(plan, file.tensors, Options()), TOKENS)
        np.testing.assert_array_equal(
            run(get_backend("reference").compile(fuse(plan), file.tensors, Options()), TOKENS), want
        )
        best, *others = (level for level in _native.kernel_levels() if level != "scalar")
        whole = run(get_backend("cpu").compile(plan, file.tensors, Options(threads=3, level=best)), TOKENS)
        alone = get_backend("cpu").compile(plan, file.tensors, Options(threads=1, level=best))
        np.testing.assert_array_equal(np.concatenate([run(alone, [token]) for token in TOKENS]), whole)
        for level in others:
            got = run(get_backend("cpu").compile(plan, file.tensors, Options(threads=2, level=level)), TOKENS)
            np.testing.assert_array_equal(got, whole)
    # Quantized activations are off by about half a hundredth, through three linears.
    error = np.linalg.norm(whole - want) / np.linalg.norm(want)
    assert error < (1e-5 if type == T.F32 else 0.03)


def act(kind, gate, up, limit=0.0):
    if limit:
        return np.minimum(gate / (1 + np.exp(-gate)), limit) * np.clip(up, -limit, limit)
    if kind == "clamped":
        gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
        return gate / (1 + np.exp(-1.702 * gate)) * (up + 1)
    bent = {
        "silu": gate / (1 + np.exp(-gate)),
        "gelu": gate / (1 + np.exp(-1.5957691216057308 * (gate + 0.044715 * gate**3))),
        "relu": np.maximum(gate, 0),
        "relu2": np.maximum(gate, 0) ** 2,
    }[kind]
    return bent * up


@pytest.mark.parametrize("name", CASES)
def test_reference_is_a_loop_over_rows_and_experts(name, tmp_path):
    case = CASES[name]
    tensors, _ = make(case, T.F32)
    file, plan = open_case(tmp_path, name, T.F32)
    with file:
        got = run(get_backend("reference").compile(plan, file.tensors, Options()), TOKENS)
    v = {key: raw.values().astype(np.float64) for key, raw in tensors.items()}
    for row, token in zip(got, TOKENS, strict=True):
        x = v["x.weight"][token]
        logits = v["router.weight"] @ (v["z.weight"][token] if case.get("router") else x)
        scores = (
            1 / (1 + np.exp(-logits)) if case.get("scoring") == "sigmoid" else np.exp(logits) / np.exp(logits).sum()
        )
        ranks = scores + v["select.bias"] if case.get("select") else scores.copy()
        if groups := case.get("groups"):
            sums = np.sort(ranks.reshape(groups, -1), axis=1)[:, -2:].sum(axis=1)
            for g in np.argsort(-sums)[case["groups_used"] :]:
                ranks.reshape(groups, -1)[g] = -np.inf
        chosen = np.argsort(-ranks)[:USED]
        total = scores[chosen].sum() if case.get("normalize") else 1.0
        want = v["r.weight"][token].copy() if case.get("residual") else np.zeros(WIDTH)
        for e in chosen:

            def linear(key, h, e=e):
                y = v[f"{key}.weight"][e] @ h * (v[f"{key}.scale"][e] if case.get("scales") else 1)
                return y + v[f"{key}.bias"][e] if case.get("biases") else y

            up = linear("up", x)
            gate = up[:FFN] if case.get("merged") else up if case.get("plain") else linear("gate", x)
            up = up[FFN:] if case.get("merged") else np.ones(FFN) if case.get("plain") else up
            want += scores[e] / total * linear("down", act(case.get("act", "silu"), gate, up, case.get("limit", 0.0)))
        np.testing.assert_allclose(row, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())
