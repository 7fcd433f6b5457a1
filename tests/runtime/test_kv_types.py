"""Types of the cache by name: which there are, and who has kernels for them."""

import pytest

from tests.cases.families import FAMILIES
from tests.cases.tiny import TINY, write_tiny
from woolly import LLM
from woolly.errors import RequestError
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.plan import Paged
from woolly.runtime import GPU_KINDS, KV_TYPES, Options, biased_keys, check_kv_type, kv_types_of
from woolly.runtime.cuda import CudaBackend
from woolly.runtime.gpu.state import page_bytes
from woolly.runtime.split import SplitBackend


@pytest.mark.parametrize("kv_type", ["q4_0", "", "q8_0/", "/q4", "q8_0/q4/q4", "Q4"])
def test_unknown_type_is_rejected_with_the_names(kv_type):
    with pytest.raises(RequestError, match="choose one of: f16, f32, q8_0, q4, or two for K and V, as in q8_0/q4"):
        Options(kv_type=kv_type)


def test_llama_cpp_name_of_the_4_bit_type_is_suggested():
    with pytest.raises(RequestError, match=r"q4_0 is llama\.cpp's name, and q4 the one here"):
        Options(kv_type="q8_0/q4_0")


def test_gpu_types_are_known_without_opening_it(tiny_model):
    others, options = "f16, f32, q8_0, q4, q8_0/q4, f16/q4", Options(kv_type="f16/f32")
    with open_gguf(tiny_model) as file, pytest.raises(RequestError, match=f"no kernels for; choose one of: {others}$"):
        CudaBackend(pytest.fail).compile(trace(file), file.tensors, options)
    with open_gguf(tiny_model) as file, pytest.raises(RequestError, match=f"no kernels for; choose one of: {others}$"):
        SplitBackend(CudaBackend(pytest.fail), insists=False).compile(trace(file), file.tensors, options)


def test_equal_types_for_keys_and_values_are_that_type(tiny_model):
    for kv_type in KV_TYPES:
        assert Options(kv_type=f"{kv_type}/{kv_type}") == Options(kv_type=kv_type)
    assert Options(kv_type="f16/q4").kv_type == "f16/q4"
    with LLM(tiny_model, ctx=64, threads=1, kv_type="f16/f16") as llm:
        assert llm.identity().kv_type == "f16"


def test_gpus_have_every_type_and_all_but_cuda_every_pair():
    for kind in GPU_KINDS:
        for name in kv_types_of(kind):
            check_kv_type(name, gpu=kind)
        assert set(KV_TYPES) <= set(kv_types_of(kind))
        assert (len(set(kv_types_of(kind))) == len(KV_TYPES) ** 2) == (kind != "cuda")


def test_gpu_pages_take_the_bits_of_both_types():
    sizes = {kv_type: page_bytes(Paged(2, 80, 64), kv_type) for kv_type in kv_types_of("cuda")}  # 80 fill 96
    assert sizes["q4"] == (2 * 32 * 96 * 9 // 16, 2 * 32 * 64 * 9 // 16)
    assert sizes["q8_0/q4"] == (sizes["q8_0"][0], sizes["q4"][1])
    assert sizes["f16/q4"] == (2 * 32 * 96 * 2, sizes["q4"][1])
    assert page_bytes(Paged(1, 80, 40, v_in_k=True), "q8_0/q4") == (32 * 96 * 9 // 8, 0)


def test_page_takes_the_bits_of_both_types(tmp_path):
    sizes, model = {}, write_tiny(TINY["qwen3"], tmp_path / "tiny.gguf")  # heads of 32 fill whole blocks
    for kv_type in ("f16", "q8_0", "q8_0/q4", "q4"):
        with LLM(model, ctx=64, threads=1, kv_type=kv_type) as llm:
            assert llm.generate([5, 6, 7], max_tokens=3, temperature=0).token_ids
            sizes[kv_type] = llm.engine.program.new_state(1).native.page_bytes
    assert sizes["q4"] < sizes["q8_0/q4"] < sizes["q8_0"] < sizes["f16"]
    assert 2 * sizes["q8_0/q4"] == sizes["q8_0"] + sizes["q4"]
    assert sizes["q4"] * 16 == sizes["f16"] * 4.5


@pytest.mark.parametrize(
    ("tiny", "kv_type", "centers", "n_warnings"),
    [
        (TINY["qwen2"], "q4", True, False),  # kept without them
        (TINY["qwen2"], "q4/f16", False, True),
        (TINY["qwen2"], "q8_0/q4", False, False),
        (TINY["qwen3"], "q4", False, False),  # none
        (FAMILIES["qwen2vl"], "q4", True, True),  # rows of images turn by other positions
    ],
)
def test_keys_with_biases_in_4_bits_give_a_warning(tiny, kv_type, centers, n_warnings, tmp_path, caplog):
    for name in ("one.gguf", "other.gguf"):
        with open_gguf(write_tiny(tiny, tmp_path / name)) as file:
            for _ in range(2):
                biased_keys.warn_of_biased_keys(trace(file), file.tensors, kv_type, centers=centers)
        assert caplog.text.count(f"keys of {name} have biases") == caplog.text.count(name) == n_warnings
