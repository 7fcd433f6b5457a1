"""Types of the cache by name: which there are, and who has kernels for them."""

import pytest

from tests.cases.tiny import TINY, write_tiny
from woolly import LLM
from woolly.errors import RequestError
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.runtime import KV_TYPES, Options, check_kv_type
from woolly.runtime.cuda import CudaBackend


@pytest.mark.parametrize("kv_type", ["q4_0", "", "q8_0/", "/q4", "q8_0/q4/q4", "Q4"])
def test_another_name_is_refused_with_the_names(kv_type):
    with pytest.raises(RequestError, match="choose one of: f16, f32, q8_0, q4, or two for K and V, as in q8_0/q4"):
        Options(kv_type=kv_type)


@pytest.mark.parametrize("kv_type", ["q4", "q8_0/q4", "f16/f32"])
def test_a_gpu_that_need_not_be_opened_has_these_types(kv_type, tiny_model):
    with open_gguf(tiny_model) as file, pytest.raises(RequestError, match=r"on a GPU choose one of: f16, f32, q8_0$"):
        CudaBackend(pytest.fail).compile(trace(file), file.tensors, Options(kv_type=kv_type))


def test_the_same_type_twice_is_that_type(tiny_model):
    for kv_type in KV_TYPES:
        assert Options(kv_type=f"{kv_type}/{kv_type}") == Options(kv_type=kv_type)
    assert Options(kv_type="f16/q4").kv_type == "f16/q4"
    with LLM(tiny_model, ctx=64, threads=1, kv_type="f16/f16") as llm:
        assert llm.identity().kv_type == "f16"


def test_every_type_but_4_bits_is_on_gpus():
    for name, kept in KV_TYPES.items():
        assert kept.on_gpus == (name != "q4")
        if kept.on_gpus:
            check_kv_type(name, on_gpus=True)


def test_a_page_takes_the_bits_of_both_types(tmp_path):
    sizes, model = {}, write_tiny(TINY["qwen3"], tmp_path / "tiny.gguf")  # heads of 32 fill whole blocks
    for kv_type in ("f16", "q8_0", "q8_0/q4", "q4"):
        with LLM(model, ctx=64, threads=1, kv_type=kv_type) as llm:
            assert llm.generate([5, 6, 7], max_tokens=3, temperature=0).token_ids
            sizes[kv_type] = llm.engine.program.new_state(1).native.page_bytes
    assert sizes["q4"] < sizes["q8_0/q4"] < sizes["q8_0"] < sizes["f16"]
    assert 2 * sizes["q8_0/q4"] == sizes["q8_0"] + sizes["q4"]
    assert sizes["q4"] * 16 == sizes["f16"] * 4.5
