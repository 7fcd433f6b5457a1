"""Files that Woolly cannot run are listed with the reason; loading one is refused with it."""

import shutil

import pytest

from tests.cases.tiny import TINY, write_tiny
from woolly.gguf import GGUFWriter


@pytest.fixture
def client(app_with, tiny_folder, tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    shutil.copy(tiny_folder / "tiny.gguf", folder)
    writer = GGUFWriter(folder / "gemma.gguf")
    writer.add("general.architecture", "nobody")
    writer.add("tokenizer.chat_template", "{{ messages }}")
    writer.write()
    with app_with(models_dir=folder) as client:
        yield client


def test_lists_say_why_a_model_is_unsupported(client):
    reason = "architecture 'nobody' is not supported yet; see `woolly list --architectures`"
    listed = {model["id"]: model["meta"]["unsupported"] for model in client.get("/v1/models").json()["data"]}
    assert listed == {"gemma": reason, "tiny": None}
    ole = {model["name"]: model for model in client.get("/api/v1/models").json()}
    assert ole["gemma"]["unsupported"] == reason and ole["gemma"]["capabilities"] == []
    assert ole["tiny"]["unsupported"] is None and "completion" in ole["tiny"]["capabilities"]
    assert client.get("/v1/models/gemma").json()["meta"]["unsupported"] == reason


def test_unsupported_model_is_rejected_with_the_reason(client):
    for path, body in (
        ("/api/v1/models/gemma/load", {}),
        ("/models/load", {"model": "gemma"}),
        ("/v1/completions", {"model": "gemma", "prompt": "a"}),
    ):
        reply = client.post(path, json=body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (422, "model_not_loadable")
        assert "architecture 'nobody' is not supported" in reply.json()["error"]["message"]


def test_unsupported_model_does_not_count_as_a_choice(client):
    reply = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
    assert reply.status_code == 200 and reply.json()["model"] == "tiny"


def test_context_of_an_unloaded_model_is_estimated(app_with, tmp_path):
    write_tiny(TINY["llama"], tmp_path / "long.gguf")
    with app_with(models_dir=tmp_path, ctx_size=64) as client:
        (model,) = client.get("/api/v1/models").json()
        assert (model["context_length"], model["loaded"]) == (64, False)
        client.post("/models/load", json={"model": "long"})
        (model,) = client.get("/api/v1/models").json()
        assert (model["context_length"], model["loaded"]) == (64, True)


def test_models_are_loaded_and_unloaded_by_llama_server_routes(client):
    assert client.post("/models/load", json={"model": "tiny"}).json() == {"success": True}
    assert [slot.info.name for slot in client.app.state.models.loaded_models] == ["tiny"]
    assert client.post("/models/unload", json={"model": "tiny"}).json() == {"success": True}
    assert client.app.state.models.loaded_models == ()
    assert client.post("/models/unload", json={"model": "nobody"}).status_code == 404
