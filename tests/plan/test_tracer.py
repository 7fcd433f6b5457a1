"""The tracer refuses what does not fit, at the model's own line."""

from types import SimpleNamespace

import pytest

from woolly.errors import ModelError, PlanError
from woolly.gguf import GGMLType
from woolly.plan import OPS, Rope, Tracer


def tensors(**shapes):
    return {name.replace("__", "."): SimpleNamespace(type=GGMLType.F32, shape=shape) for name, shape in shapes.items()}


def tracer(**shapes):
    return Tracer("test", tensors(token_embd__weight=(10, 8), **shapes))


ROPE = Rope(head_dim=4, n_rot=4, base=10000.0, style="halves")


def test_linear_of_the_wrong_width_is_refused_at_the_models_line():
    p = tracer(up__weight=(6, 7))
    x = p.embed("token_embd", width=8)
    with pytest.raises(PlanError, match=r"test_tracer\.py:\d+: up\.weight has 7 columns, but its input is 8 wide"):
        p.linear(x, "up", width=6)


def test_a_matrix_of_other_rows_than_the_metadata_says_is_refused():
    p = tracer(up__weight=(6, 8))
    with pytest.raises(PlanError, match=r"up\.weight has 6 rows, but the metadata says 8"):
        p.linear(p.embed("token_embd", width=8), "up", width=8)
    with pytest.raises(PlanError, match=r"token_embd\.weight has 8 columns, but the metadata says 9"):
        p.embed("token_embd", width=9)


def test_a_missing_tensor_is_named_with_its_scope():
    p = tracer()
    x = p.embed("token_embd", width=8)
    with p.scope("blk.3"), pytest.raises(ModelError, match=r"tensor blk\.3\.attn_q\.weight is missing"):
        p.linear(x, "attn_q", width=8)


def test_a_bias_of_the_wrong_length_is_refused():
    p = tracer(up__weight=(6, 8), up__bias=(5,))
    with pytest.raises(PlanError, match=r"up\.bias has 5 elements"):
        p.linear(p.embed("token_embd", width=8), "up", width=6)


def test_a_norm_that_does_not_divide_the_width_is_refused():
    p = tracer(norm__weight=(3,))
    with pytest.raises(PlanError, match="do not divide the width 8"):
        p.rms_norm(p.embed("token_embd", width=8), "norm", eps=1e-5)


def test_a_matrix_where_a_vector_belongs_is_refused():
    p = tracer(norm__weight=(8, 8))
    with pytest.raises(PlanError, match="a vector was expected"):
        p.rms_norm(p.embed("token_embd", width=8), "norm", eps=1e-5)


def test_values_of_unequal_width_cannot_be_added():
    p = tracer(up__weight=(6, 8))
    x = p.embed("token_embd", width=8)
    with pytest.raises(PlanError, match="add got"):
        x + p.linear(x, "up", width=6)


def test_rope_refuses_heads_that_do_not_fit():
    p = tracer(up__weight=(6, 8))
    with pytest.raises(PlanError, match="do not divide the width 6"):
        p.rope(p.linear(p.embed("token_embd", width=8), "up", width=6), ROPE)


def test_rope_refuses_an_odd_part_of_the_head():
    p = tracer()
    with pytest.raises(PlanError, match="an even part"):
        p.rope(p.embed("token_embd", width=8), Rope(head_dim=4, n_rot=3, base=10000.0, style="halves"))


def test_attention_layers_come_in_order():
    p = tracer()
    x = p.embed("token_embd", width=8)
    with pytest.raises(PlanError, match="names layer 1, but layer 0 comes next"):
        p.attention(x, x, x, layer=1, head_dim=4, scale=1.0)


def test_attention_needs_whole_groups_of_query_heads():
    p = tracer(q__weight=(12, 8))
    x = p.embed("token_embd", width=8)
    with pytest.raises(PlanError, match="no multiple of the k width"):
        p.attention(p.linear(x, "q", width=12), x, x, layer=0, head_dim=4, scale=1.0)


def test_a_tensor_that_no_step_reads_is_an_error():
    p = tracer(surprise__weight=(8,))
    p.output(p.output_rows(p.embed("token_embd", width=8)))
    with pytest.raises(ModelError, match=r"surprise\.weight"):
        p.plan()


def test_a_model_without_output_is_an_error():
    p = tracer()
    p.embed("token_embd", width=8)
    with pytest.raises(PlanError, match="names no output"):
        p.plan()


def test_equal_models_give_equal_plans():
    def build():
        p = tracer(norm__weight=(8,))
        p.output(p.output_rows(p.rms_norm(p.embed("token_embd", width=8), "norm", eps=1e-5)) * 2.0)
        return p.plan()

    assert build() == build()
    assert hash(build()) == hash(build())


def test_every_plain_op_of_the_table_can_be_traced():
    experts = {"gate__weight": (2, 6, 8), "down__weight": (2, 8, 6), "router__weight": (2, 8)}
    p = tracer(up__weight=(8, 8), norm__weight=(4,), **experts)
    x = p.embed("token_embd", width=8)
    h = p.rms_norm(x, "norm", eps=1e-6)
    q = p.rope(p.linear(h, "up", width=8), ROPE)
    x = x + p.attention(q, q, h, layer=0, head_dim=4, scale=0.5)
    x = p.swiglu(x, x) * 0.5
    x = p.moe(x, "router", "gate", "gate", "down", n_experts=2, ffn=6, n_used=1)
    p.output(p.output_rows(x))
    plan = p.plan()
    assert {step.op for step in plan.steps} == {op.name for op in OPS.values() if not op.fused}
    assert plan.cache[0].n_kv_heads == 2
    assert plan.cache_bytes_per_token(2) == 2 * 8 * 2
