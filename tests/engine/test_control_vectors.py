"""Control vectors: directions that are added to what layers leave."""

import numpy as np
import pytest

from tests.cases.families import FAMILIES
from tests.cases.mtp import MTP
from tests.cases.tiny import TINY, write_tiny
from woolly import LLM, ModelError, RequestError, SamplingParams
from woolly.gguf import GGUFWriter
from woolly.quant import GGMLType

PROMPT = np.random.RandomState(2).randint(0, 256, 70).tolist()
PARAMS = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)


def directions(seed, *layers, width=64):
    random = np.random.RandomState(seed)
    return {f"direction.{layer}": random.randn(width).astype(np.float32) for layer in layers}


def write_vector(path, vectors, **keys):
    writer = GGUFWriter(path)
    for key, value in ({"general.architecture": "controlvector", "controlvector.layer_count": 2} | keys).items():
        writer.add(key, value)
    for name, array in vectors.items():
        writer.add_raw_tensor(name, GGMLType.F32, array.shape, array.view(np.uint8))
    writer.write()
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("control")


@pytest.fixture(scope="module")
def model(folder):
    return write_tiny(FAMILIES["qwen3moe"], folder / "tiny.gguf")


def tiny_layers():
    return FAMILIES["qwen3moe"].n_layers


@pytest.fixture(scope="module")
def vector(folder):
    return write_vector(folder / "one.gguf", directions(1, 1))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_layer_output_is_shifted_by_the_scaled_sum(folder, model, vector, backend):
    other = write_vector(folder / "two.gguf", directions(2, 1))
    options = {"ctx": 128, "threads": 1, "backend": backend, "kv_type": "f32"}
    moved = 0.5 * directions(1, 1)["direction.1"] - 2.0 * directions(2, 1)["direction.1"]
    with LLM(model, **options) as plain, LLM(model, control_vectors={vector: 0.5, other: -2}, **options) as llm:
        before, after = plain.hidden(PROMPT, "blk.1"), llm.hidden(PROMPT, "blk.1")
        np.testing.assert_allclose(after, before + moved, rtol=0, atol=1e-5)
        np.testing.assert_array_equal(llm.hidden(PROMPT, "blk.0"), plain.hidden(PROMPT, "blk.0"))
        assert not np.allclose(llm.logits(PROMPT), plain.logits(PROMPT), atol=0.1)


@pytest.mark.parametrize("name", ["llama", "qwen35", "gemma2"])
def test_reference_and_native_agree(folder, name):
    tiny = (TINY | FAMILIES | MTP)[name]
    path = write_tiny(tiny, folder / f"{name}.gguf")
    vector = write_vector(folder / f"{name}-vector.gguf", directions(3, 1))
    out = []
    for backend in ("cpu", "reference"):
        with LLM(path, ctx=128, threads=1, backend=backend, kv_type="f32", control_vectors=[vector]) as llm:
            out.append(llm.logits(PROMPT))
    np.testing.assert_allclose(*out, rtol=0, atol=2e-2)


def test_layers_outside_the_range_are_unchanged(folder, model):
    vector = write_vector(folder / "all.gguf", directions(4, *range(1, tiny_layers())))
    with LLM(model, ctx=128, threads=1) as plain, LLM(model, ctx=128, threads=1, control_vectors=vector) as llm:
        assert llm.generate(PROMPT, PARAMS).token_ids != plain.generate(PROMPT, PARAMS).token_ids
        wanted = plain.logits(PROMPT)
    with LLM(model, ctx=128, threads=1, control_vectors=vector, control_vector_layers=(7, 9)) as llm:
        np.testing.assert_array_equal(llm.logits(PROMPT), wanted)
    with pytest.raises(RequestError, match=r"control_vector_layers is \(9, 7\); expected the first and last layer"):
        LLM(model, control_vectors=vector, control_vector_layers=(9, 7))
    with pytest.raises(RequestError, match="control_vector_layers needs control vectors"):
        LLM(model, control_vector_layers=(1, 2))


def test_pages_are_keyed_by_control_vectors(model, vector):
    digests = []
    for scale in (1.0, 1.0, 0.5, 0.0):
        with LLM(model, ctx=128, threads=1, control_vectors=[(vector, scale)]) as llm:
            (request,) = llm.prepare(PROMPT, PARAMS)[0]
            digests.append(request.digests_to(2))
    with LLM(model, ctx=128, threads=1) as plain:
        (request,) = plain.prepare(PROMPT, PARAMS)[0]
        digests.append(request.digests_to(2))
    assert digests[0] == digests[1]
    assert len({tuple(one) for one in digests}) == 4


def test_speculation_takes_control_vectors(folder, vector):
    path = write_tiny(MTP["glm4moe"], folder / "mtp.gguf")
    with LLM(path, ctx=128, threads=1, control_vectors=vector, speculation=None) as plain:
        wanted = plain.generate(PROMPT, PARAMS).token_ids
    with LLM(path, ctx=128, threads=1, control_vectors=vector, speculation="mtp") as llm:
        assert llm.generate(PROMPT, PARAMS).token_ids == wanted


@pytest.mark.parametrize(
    ("vectors", "keys", "message"),
    [
        (directions(1, 1), {"general.architecture": "llama"}, "not a control vector"),
        (directions(1, 0, 1), {}, "unsupported tensor 'direction.0'; expected direction.N"),
        ({"direct.1": np.ones(64, np.float32)}, {}, "unsupported tensor 'direct.1'"),
        (directions(1, 1, width=32), {}, "has 32 numbers, but blk.1 leaves 64"),
        (directions(1, 40), {}, "a direction for blk.40, which does not exist in the model"),
        ({"direction.1": np.ones((2, 64), np.float32)}, {}, r"is F32 of shape \(2, 64\); expected an F32 vector"),
        ({"direction.1": np.full(64, np.nan, np.float32)}, {}, "not finite"),
        ({}, {}, "has no directions"),
    ],
)
def test_unsupported_files_are_rejected(folder, model, vectors, keys, message):
    path = write_vector(folder / "broken.gguf", vectors, **keys)
    with pytest.raises(ModelError, match=message):
        LLM(model, ctx=64, threads=1, control_vectors=[path])


@pytest.mark.parametrize("given", [{"x.gguf": "much"}, {"x.gguf": float("nan")}, [3], [("x.gguf", True)], 7])
def test_wrong_scales_are_rejected(model, given):
    with pytest.raises(RequestError, match=r"control_vectors|scale of x\.gguf"):
        LLM(model, control_vectors=given)
