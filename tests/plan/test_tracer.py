"""The tracer refuses what does not fit, at the model's own line."""

from types import SimpleNamespace

import pytest

from woolly.errors import ModelError, PlanError
from woolly.plan import OPS, Paged, Rope, Tracer
from woolly.plan.passes import fuse_attention
from woolly.quant import GGMLType


def tensors(**shapes):
    return {name.replace("__", "."): SimpleNamespace(type=GGMLType.F32, shape=shape) for name, shape in shapes.items()}


def tracer(**shapes):
    return Tracer("test", tensors(token_embd__weight=(10, 8), **shapes))


ROPE = Rope(head_dim=4, n_rot=4, base=10000.0, style="neox")


def test_linear_of_the_wrong_width_is_rejected_at_the_model_line():
    p = tracer(up__weight=(6, 7))
    x = p.embed("token_embd", width=8)
    with pytest.raises(PlanError, match=r"up\.weight has 7 columns, but its input is 8 wide \(test_tracer\.py:\d+\)"):
        p.linear(x, "up", width=6)


def test_matrix_with_rows_unlike_the_metadata_is_rejected():
    p = tracer(up__weight=(6, 8))
    with pytest.raises(PlanError, match=r"up\.weight has 6 rows, but the metadata says 8"):
        p.linear(p.embed("token_embd", width=8), "up", width=8)
    with pytest.raises(PlanError, match=r"token_embd\.weight has 8 columns, but the metadata says 9"):
        p.embed("token_embd", width=9)


def test_bias_of_a_scaled_matrix_is_added_after_the_scale():
    p = tracer(up__weight=(6, 8), up__bias=(6,), up__scale=(1,))
    p.output(p.linear(p.embed("token_embd", width=8), "up", width=6))
    steps = p.plan().steps
    assert [(s.op, [w.name for w in s.weights]) for s in steps[1:]] == [
        ("linear", ["up.weight"]),
        ("mul_weight", ["up.scale"]),
        ("add_weight", ["up.bias"]),
    ]


def test_missing_tensor_is_named_with_its_scope():
    p = tracer()
    x = p.embed("token_embd", width=8)
    with p.scope("blk.3"), pytest.raises(ModelError, match=r"tensor blk\.3\.attn_q\.weight is missing"):
        p.linear(x, "attn_q", width=8)


def test_bias_of_the_wrong_length_is_rejected():
    p = tracer(up__weight=(6, 8), up__bias=(5,))
    with pytest.raises(PlanError, match=r"up\.bias has 5 elements"):
        p.linear(p.embed("token_embd", width=8), "up", width=6)


def test_norm_that_does_not_divide_the_width_is_rejected():
    p = tracer(norm__weight=(3,))
    with pytest.raises(PlanError, match="do not divide the width 8"):
        p.rms_norm(p.embed("token_embd", width=8), "norm", eps=1e-5)


def test_injected_rows_need_a_norm_or_a_width():
    p = tracer()
    assert p.hidden(width=8).width == 8
    with pytest.raises(PlanError, match=r"hidden without a norm needs the width of its rows.* \(test_tracer\.py:\d+\)"):
        p.hidden()


def test_matrix_in_place_of_a_vector_is_rejected():
    p = tracer(norm__weight=(8, 8))
    with pytest.raises(PlanError, match="a vector is expected"):
        p.rms_norm(p.embed("token_embd", width=8), "norm", eps=1e-5)


def test_values_of_unequal_width_cannot_be_added():
    p = tracer(up__weight=(6, 8))
    x = p.embed("token_embd", width=8)
    with pytest.raises(PlanError, match="add got"):
        x + p.linear(x, "up", width=6)


def test_rope_rejects_mismatched_heads():
    p = tracer(up__weight=(6, 8))
    with pytest.raises(PlanError, match="do not divide the width 6"):
        p.rope(p.linear(p.embed("token_embd", width=8), "up", width=6), ROPE)


def test_rope_rejects_an_odd_number_of_rotated_columns():
    p = tracer()
    with pytest.raises(PlanError, match="expected an even number"):
        p.rope(p.embed("token_embd", width=8), Rope(head_dim=4, n_rot=3, base=10000.0, style="neox"))


@pytest.mark.parametrize("buckets", [3, 512])
def test_attention_rejects_reversed_distance_buckets(buckets):
    p = tracer(far__weight=(buckets, 2))
    x = p.embed("token_embd", width=8)
    with pytest.raises(PlanError, match=rf"far\.weight has shape \({buckets}, 2\) for 2 heads"):
        p.attention(x, x, x, head_dim=4, scale=1.0, mask="all", distances="far")


def test_attention_keeps_entries_in_order_of_use():
    p = tracer()
    x = p.embed("token_embd", width=8)
    a = p.attention(x, x, x, head_dim=4, scale=1.0, window=3)
    p.attention(x, like=a, head_dim=4, scale=1.0, window=5)
    wide = p.attention(x, x, p.slice(x, first=0, width=2), head_dim=4, scale=1.0)
    inside = p.attention(x, x, v_dim=3, head_dim=8, scale=1.0, window=2)
    last = p.attention(x, like=inside, head_dim=8, scale=1.0)
    assert (wide.width, inside.width, last.width) == (2, 3, 3)
    p.output(last)
    plan = p.plan()
    assert plan.state == (Paged(2, 4, 4, window=5), Paged(2, 4, 1), Paged(1, 8, 3, v_in_k=True))
    assert [step.integer("entry") for step in plan.steps if step.op == "attention"] == [0, 0, 1, 2, 2]
    assert plan.bytes_per_token(2) == 2 * (16 + 10 + 8)
    assert plan.bytes_per_sequence == 0


def test_attention_like_another_needs_that_one_and_its_heads():
    p = tracer()
    x = p.embed("token_embd", width=8)
    a = p.attention(x, x, x, head_dim=4, scale=1.0)
    with pytest.raises(PlanError, match="not the result of an attention"):
        p.attention(x, like=x, head_dim=4, scale=1.0)
    with pytest.raises(PlanError, match="got heads of 8, but the one that it is like keeps heads of 4"):
        p.attention(x, like=a, head_dim=8, scale=1.0)
    for kv in ((), (x,)):
        with pytest.raises(PlanError, match="needs k, or an earlier attention"):
            p.attention(x, *kv, like=a if kv else None, head_dim=4, scale=1.0)
    with pytest.raises(PlanError, match="got k and v with other heads than the attention that it is like"):
        p.attention(x, x, p.slice(x, first=0, width=2), like=a, head_dim=4, scale=1.0)


def test_attention_like_another_may_store_its_own_keys():
    p = tracer()
    x = p.embed("token_embd", width=8)
    a = p.attention(x, x, x, head_dim=4, scale=1.0)
    p.output(p.attention(x, x, x, like=a, head_dim=4, scale=1.0))
    plan = p.plan()
    assert plan.state == (Paged(2, 4, 4),)
    # What the first one finds is read by nobody: it only stores.
    assert [step.op for step in fuse_attention(plan).steps] == ["embed", "store", "store", "attend"]


def test_attention_rejects_mismatched_widths_and_masks():
    p = tracer()
    x = p.embed("token_embd", width=8)
    with pytest.raises(PlanError, match="v_dim of 9; expected 1 to 8"):
        p.attention(x, x, v_dim=9, head_dim=8, scale=1.0)
    with pytest.raises(PlanError, match="k of width 8 and v of 3; expected multiples of 4"):
        p.attention(x, x, p.slice(x, first=0, width=3), head_dim=4, scale=1.0)
    with pytest.raises(PlanError, match="'chunked' needs a window"):
        p.attention(x, x, x, head_dim=4, scale=1.0, mask="chunked")


def test_attention_needs_full_groups_of_query_heads():
    p = tracer(q__weight=(12, 8))
    x = p.embed("token_embd", width=8)
    with pytest.raises(PlanError, match="not a multiple of the k width"):
        p.attention(p.linear(x, "q", width=12), x, x, head_dim=4, scale=1.0)


def test_unused_tensor_is_an_error():
    p = tracer(surprise__weight=(8,))
    p.output(p.output_rows(p.embed("token_embd", width=8)))
    with pytest.raises(ModelError, match=r"surprise\.weight"):
        p.plan()


def test_unused_rows_are_an_error():
    p = tracer(up__weight=(6, 8), up__bias=(6,))
    x = p.embed("token_embd", width=8)
    y = p.linear(x, "up", width=2, first=0) + p.linear(x, "up", width=2, first=2)
    p.output(p.output_rows(y))
    with pytest.raises(ModelError, match=r"up\.weight has rows that Woolly's test model does not use"):
        p.plan()
    with pytest.raises(PlanError, match=r"up\.weight has 6 rows, but rows 5 to 7 are expected"):
        p.linear(x, "up", width=2, first=5)


def test_skipped_tensors_and_towers_may_stay_unread():
    p = tracer(v__patch__weight=(8,), blk__3__norm__weight=(8,), up__input_scale=(1,))
    p.skip("blk.3")
    p.output(p.output_rows(p.embed("token_embd", width=8)))
    assert len(p.plan().steps) == 2


def test_model_without_output_is_an_error():
    p = tracer()
    p.embed("token_embd", width=8)
    with pytest.raises(PlanError, match="does not call output"):
        p.plan()


def test_equal_models_give_equal_plans():
    def build():
        p = tracer(norm__weight=(8,))
        p.output(p.output_rows(p.rms_norm(p.embed("token_embd", width=8), "norm", eps=1e-5)) * 2.0)
        return p.plan()

    assert build() == build()
    assert hash(build()) == hash(build())


def test_every_plain_op_of_the_table_can_be_traced():
    experts = {"gate__weight": (2, 12, 8), "down__weight": (2, 8, 6), "router__weight": (2, 8)}
    experts["heads__weight"] = (2, 4, 4)
    recurrent = {"filter__weight": (8, 2), "rates__weight": (8, 2), "skips__weight": (8,), "two__weight": (2, 1)}
    texts = {"at__weight": (5, 8), "kinds__weight": (2, 8), "sinks__weight": (2,), "one__weight": (1,)}
    p = tracer(up__weight=(8, 8), norm__weight=(4,), **experts, **recurrent, **texts)
    x = p.embed_token_type(p.embed_position(p.embed("token_embd", width=8), "at"), "kinds", 3)
    x = p.conv1d(p.embedding_bag(x + p.input(width=8), "at", taps=2), "filter", kernel=2, before=1)
    x = p.gather_conv1d(p.cumulative_norm(x, "norm", eps=1e-3), "filter", first=0, taps=2)
    two, b, _ = p.split(x, 2, 2, 4)
    x = p.scan_mamba(p.causal_conv1d(x, "filter", kernel=2), p.token_shift(x), two, b, a="rates", d="skips")
    x = x + p.ngrams("at", end=0, factors=(1, 3), sizes=(5,), firsts=(0,))
    x = p.scan_mamba2(x, two, b, b, a="two", d="two", groups=1) + p.vector("norm")
    x = p.delta_net(x, x, x, two, b, heads_k=2, heads_v=2, order="div", eps=1e-6)
    x = p.lightning_attention(p.wkv7(x, x, x, x, x, x, head=4), x, x, head=4, slope=1.0)
    x = p.concat(p.slice(x, first=0, width=3), p.slice(x, first=3, width=5))
    x = p.gaussian_topk(
        p.match_rms(p.mix_streams(x, p.slice(x, first=0, width=4), streams=2), x, least=1e-5), deviations=0.5
    )
    x = p.linear_id(p.per_head_linear(x, "heads", heads=2, width=4), "up", "up", width=8)
    x = p.lerp(x, p.mul(x, p.vecdot(x, x, group=4)), "skips") + p.hidden("skips", eps=1e-6)
    h = p.rms_norm(x, "norm", eps=1e-6)
    q = p.rope(p.linear(h, "up", width=8), ROPE)
    chosen = p.indexer(q, p.slice(q, first=0, width=4), two, head_dim=4, n=3)
    x = x + p.attention(q, q, h, head_dim=4, scale=0.5, chosen=chosen)
    x = p.glu(x, p.unary(p.mul_weight(p.softcap(p.clip(p.clamp(x, 5.0), -1.0, 2.0), 3.0), "norm"), "relu2")) * 0.5
    x = x + p.attention(p.slice(q, first=0, width=8), q, q, head_dim=4, scale=0.5)
    blocks = p.cache_rows(p.compress(x, x, "kinds", every=2, width=4))
    latest = p.cache_rows(p.slice(x, first=0, width=4), window=2)
    x = x + p.attend_compressed(q, latest, blocks, head_dim=4, scale=0.5, window=2, every=2, sinks="sinks")
    x = p.mul(x, p.hyper_connections(p.slice(x, first=0, width=2), "one", "sinks", streams=2, iterations=1, eps=1e-6))
    x = p.layer_norm(p.xielu(x, alpha_p=1.0, alpha_n=1.0, beta=0.5, eps=-1e-6), eps=1e-6) * x
    x = p.moe(x, "router", "gate", "gate", "down", n_experts=2, ffn=6, n_used=1)
    p.output_rows(x)
    p.merge_patches(x, rows=2, kind="concat")
    p.output(p.pool(x, "mean"))
    plan = p.plan()
    assert {step.op for step in plan.steps} == {op.name for op in OPS.values() if not op.fused}
    kept = [Paged(1, 4, 4, v_in_k=True), Paged(1, 4, 4, v_in_k=True, window=2)]
    assert list(plan.paged.values()) == [Paged(1, 4, 4, v_in_k=True), Paged(2, 4, 4), Paged(2, 4, 4), *kept]
    assert [slot.numbers for slot in plan.slots.values()] == [8, 8, 16, 1, 16, 32, 32, 32, 48]
    assert plan.bytes_per_sequence == 4 * 193
