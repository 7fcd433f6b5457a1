"""Models that see: from a caller's image to an answer, over the library, the server and the command line."""

import base64
import json
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
from fastapi.testclient import TestClient

from tests.cases.families import FAMILIES
from tests.cases.tiny import TINY, write_tiny
from tests.cases.towers import TOWERS, write_tower
from tests.cli.terminal import woolly
from woolly import LLM
from woolly.errors import ModelError, RequestError, StoreError, UnsupportedError
from woolly.serving import Settings, create_app

Image = pytest.importorskip("PIL.Image")

M_ROPE = {"rope.dimension_sections": [2, 3, 3, 0]}
QWEN2 = replace(TINY["qwen2"], name="qwen2vl-text", architecture="qwen2vl", extra=M_ROPE)
GREEDY = {"temperature": 0, "max_tokens": 4, "ignore_eos": True}


def pixels(seed):
    return np.random.default_rng(seed).integers(0, 256, (40, 30, 3), np.uint8)


def saved(seed):
    file = BytesIO()
    Image.fromarray(pixels(seed)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vision")
    write_tiny(QWEN2, folder / "qwen-Q8_0.gguf")
    write_tower(TOWERS["qwen2vl"], folder / "mmproj-qwen-F16.gguf")
    write_tiny(FAMILIES["gemma3"], folder / "gemma-Q8_0.gguf")
    write_tower(TOWERS["gemma3"], folder / "mmproj-gemma-F16.gguf")
    (folder / "a.png").write_bytes(saved(1))
    return folder


@pytest.mark.parametrize("name", ["qwen", "gemma"])
def test_model_uses_the_projector_next_to_it(folder, name):
    with LLM(folder / f"{name}-Q8_0.gguf", backend="cpu", threads=1, ctx=256) as llm:
        assert llm.modalities is not None
        one = llm.chat("hi", images=[pixels(1)], **GREEDY, logprobs=2)
        again = llm.chat("hi", images=[folder / "a.png"], **GREEDY, logprobs=2)
        other = llm.chat("hi", images=[saved(2)], **GREEDY, logprobs=2)
        blind = llm.chat("hi", **GREEDY, logprobs=2)
    assert one.token_ids == again.token_ids and one.logprobs == again.logprobs
    assert one.logprobs != other.logprobs and one.logprobs != blind.logprobs


def test_projector_can_be_named_or_left_out(folder):
    with LLM(folder / "qwen-Q8_0.gguf", backend="cpu", threads=1, ctx=64, mmproj="none") as llm:
        assert llm.modalities is None
    with pytest.raises(StoreError, match=r"projector .* not found"):
        LLM(folder / "qwen-Q8_0.gguf", backend="cpu", mmproj=folder / "none.gguf")


def test_mismatched_projector_is_rejected_with_both_names(folder, tmp_path):
    wide = write_tiny(replace(TINY["qwen2"], name="wide", width=96), tmp_path / "wide-Q8_0.gguf")
    projector = folder / "mmproj-gemma-F16.gguf"
    with pytest.raises(ModelError) as error:
        LLM(wide, backend="cpu", mmproj=projector)
    assert str(error.value) == (
        "mmproj-gemma-F16.gguf has rows of width 64, but wide-Q8_0.gguf expects width 96:"
        " they belong to different models"
    )
    (tmp_path / "mmproj-F16.gguf").write_bytes(projector.read_bytes())
    with LLM(wide, backend="cpu", threads=1, ctx=64) as llm:  # nobody asked for it
        assert llm.modalities is None


SHALLOW = replace(TINY["qwen3"], name="shallow", architecture="qwen3vl", head_dim=16, extra=M_ROPE, n_layers=1)
UNFIT = {  # a model, a projector as wide as it, and why they do not go together
    "distances": (FAMILIES["bloom"], "llava", UnsupportedError, "bloom models with ALiBi do not support images"),
    "layers": (SHALLOW, "qwen3vl", ModelError, "makes rows for 2 layers, but the qwen3vl model has 1"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_unusable_projector_stops_a_model_only_if_requested(case, tmp_path, caplog):
    family, tower, kind, reason = UNFIT[case]
    model = write_tiny(family, tmp_path / "text-Q8_0.gguf")
    projector = write_tower(TOWERS[tower], tmp_path / "mmproj-F16.gguf")
    with pytest.raises(kind, match=reason):
        LLM(model, backend="cpu", threads=1, ctx=64, mmproj=projector)
    with LLM(model, backend="cpu", threads=1, ctx=64) as llm:
        assert llm.modalities is None
        assert len(llm.generate("hi", **GREEDY).token_ids) == 4
    assert "mmproj-F16.gguf is not used, so the model does not support images" in caplog.text and reason in caplog.text


def test_loaded_text_model_does_not_claim_vision(tmp_path):
    model = write_tiny(FAMILIES["bloom"], tmp_path / "text-Q8_0.gguf")
    write_tower(TOWERS["llava"], tmp_path / "mmproj-F16.gguf")
    settings = Settings(models_dir=tmp_path, model=str(model), backend="cpu", threads=1, ctx_size=64)
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        assert client.post("/v1/completions", json={"prompt": "hi", "max_tokens": 1}).status_code == 200
        (one,) = client.get("/v1/models").json()["data"]
        assert one["architecture"]["input_modalities"] == ["text"]
        assert client.get("/props").json()["modalities"]["vision"] is False
        assert "vision" not in client.post("/api/show", json={"model": one["id"]}).json()["capabilities"]


def test_run_takes_an_image(folder):
    model = str(folder / "qwen-Q8_0.gguf")
    options = ["-n", "2", "-t", "1", "--backend", "cpu", "--temp", "0", "--ignore-eos", "--json"]
    seen = json.loads(woolly("run", model, "hi", "--image", str(folder / "a.png"), *options))
    plain = json.loads(woolly("run", model, "hi", *options))
    assert seen["prompt_tokens"] > plain["prompt_tokens"]


def test_image_tokens_of_the_server_match_the_library(folder):
    url = "data:image/png;base64," + base64.b64encode(saved(1)).decode()
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "hi"}]
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 2, "temperature": 0}
    settings = Settings(models_dir=folder, model=str(folder / "qwen-Q8_0.gguf"), backend="cpu", threads=1, ctx_size=256)
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        reply = client.post("/v1/chat/completions", json=body)
        assert reply.status_code == 200, reply.text
        (model,) = (one for one in client.get("/v1/models").json()["data"] if one["id"].startswith("qwen"))
        assert model["architecture"]["input_modalities"] == ["text", "image", "video"]
        assert client.get("/props").json()["modalities"] == {"vision": True, "audio": False}
        assert "vision" in client.post("/api/show", json={"model": model["id"]}).json()["capabilities"]
        body["messages"][0]["content"][0]["image_url"]["url"] = "https://example.com/a.png"
        refused = client.post("/v1/chat/completions", json=body)
        assert refused.status_code == 400 and "--allow-remote-images" in refused.json()["error"]["message"]
    with LLM(folder / "qwen-Q8_0.gguf", backend="cpu", threads=1, ctx=256) as llm:
        asked = llm.chat("hi", images=[pixels(1)], max_tokens=2, temperature=0)
    assert reply.json()["usage"]["prompt_tokens"] == asked.n_prompt_tokens


def test_images_cannot_be_combined_with_a_previous_context(folder):
    settings = Settings(models_dir=folder, model=str(folder / "qwen-Q8_0.gguf"), backend="cpu", threads=1, ctx_size=256)
    body = {"model": "qwen-Q8_0", "prompt": "hi", "stream": False, "options": {"num_predict": 2}}
    images = [base64.b64encode(saved(1)).decode()]
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        seen = client.post("/api/generate", json=body | {"images": images})
        assert seen.status_code == 200 and "context" not in seen.json(), seen.text
        context = client.post("/api/generate", json=body).json()["context"]
        refused = client.post("/api/generate", json=body | {"images": images, "context": context})
    assert refused.status_code == 400
    assert "images: cannot be combined with context; remove one of them" in refused.text


def test_slot_with_an_image_can_be_erased_but_not_saved(folder, tmp_path):
    settings = Settings(
        models_dir=folder,
        model=str(folder / "qwen-Q8_0.gguf"),
        backend="cpu",
        threads=1,
        ctx_size=256,
        parallel=1,
        slot_save_path=tmp_path,
    )
    url = "data:image/png;base64," + base64.b64encode(saved(1)).decode()
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what is it? " * 4}]
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 2, "temperature": 0, "ignore_eos": True}
    with TestClient(create_app(settings), base_url="http://localhost") as client:

        def usage():
            return client.post("/v1/chat/completions", json=body).json()["usage"]

        assert usage()["prompt_tokens_details"]["cached_tokens"] == 0
        again = usage()
        assert again["prompt_tokens_details"]["cached_tokens"] > 0
        refused = client.post("/slots/0?action=save", json={"filename": "a"})
        assert refused.status_code == 400 and "slot 0 had an image" in refused.text
        assert not list(tmp_path.iterdir())
        erased = client.post("/slots/0?action=erase").json()["n_erased"]
        assert erased == again["total_tokens"] - 1  # the last token was never computed
        assert usage()["prompt_tokens_details"]["cached_tokens"] == 0


def vision_client(folder, **settings):
    model = str(folder / "qwen-Q8_0.gguf")
    given = Settings(models_dir=folder, model=model, backend="cpu", threads=1, ctx_size=256, **settings)
    return TestClient(create_app(given), base_url="http://localhost")


def test_completion_takes_images_at_its_markers(folder):
    data = [base64.b64encode(saved(seed)).decode() for seed in (1, 2)]
    options = {"n_predict": 3, "temperature": 0, "ignore_eos": True, "return_tokens": True}
    with vision_client(folder) as client:
        mark = client.get("/props").json()["media_marker"]

        def ask(text, images):
            prompt = {"prompt_string": text, "multimodal_data": images}
            return client.post("/completion", json={"prompt": prompt, **options})

        one, other = (ask(f"See {mark}?", [image]).json() for image in data)
        plain = client.post("/completion", json={"prompt": "See ?", **options}).json()
        assert one["tokens_evaluated"] == other["tokens_evaluated"] > plain["tokens_evaluated"] + 4
        assert one["tokens"] == ask(f"See {mark}?", [f"data:image/png;base64,{data[0]}"]).json()["tokens"]
        assert ask(f"{mark} and {mark}", data).json()["tokens_evaluated"] > one["tokens_evaluated"]
        refused = {
            "expected one marker <__media__> per image and audio clip, but got 0 markers for 1 items": ask(
                "See", data[:1]
            ),
            "prompt.multimodal_data.0": ask(f"See {mark}", ["malformed"]),
            "expected a list of images and audio clips in base64": ask(f"See {mark}", "AAAA"),
        }
        for words, reply in refused.items():
            assert reply.status_code == 400 and words in reply.json()["error"]["message"], reply.text


def test_vllm_tokenize_counts_image_rows(folder):
    url = "data:image/png;base64," + base64.b64encode(saved(1)).decode()
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "hi"}]
    body = {"messages": [{"role": "user", "content": parts}]}
    with vision_client(folder) as client:
        reported = client.post("/tokenize", json=body).json()
        asked = client.post("/v1/chat/completions", json={**body, "max_tokens": 1}).json()
    assert reported["count"] == len(reported["tokens"]) == asked["usage"]["prompt_tokens"]


def test_chat_models_give_embeddings_with_a_pooling(folder):
    with vision_client(folder) as client:
        refused = client.post("/v1/embeddings", json={"input": "hi"})
        assert refused.status_code in (400, 404)
    with vision_client(folder, pooling="mean") as client:
        reported = client.post("/v1/embeddings", json={"input": ["hi", "you"]}).json()["data"]
        own = client.post("/embedding", json={"content": "hi", "embd_normalize": -1}).json()[0]["embedding"][0]
        assert client.post("/v1/completions", json={"prompt": "hi", "max_tokens": 1}).status_code == 200
    with LLM(folder / "qwen-Q8_0.gguf", backend="cpu", threads=1, ctx=256) as llm:
        want = llm.embed(["hi", "you"], pooling="mean")
        np.testing.assert_allclose([one["embedding"] for one in reported], want, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(own, llm.embed("hi", pooling="mean", normalize=False)[0], rtol=1e-5, atol=1e-6)
    with pytest.raises(RequestError, match="pooling is 'rank'; choose one of: mean, cls, last"):
        Settings(pooling="rank")


def test_model_list_shows_vision_to_llama_server_clients(folder):
    with vision_client(folder) as client:
        models = {one["name"]: one["capabilities"] for one in client.get("/models").json()["models"]}
    assert "multimodal" in models["qwen-Q8_0"] and "completion" in models["qwen-Q8_0"]
