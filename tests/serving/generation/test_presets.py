"""Presets at the server: by the model's name, below what a request asks for."""

import shutil

import pytest

TEMPLATE = "{% for m in messages %}[{{ m.role }}: {{ m.content }}]{% endfor %}"
PRESETS = '[tiny]\nsystem = "Be terse."\nctx = 128\ntemperature = 0.0\nmax_tokens = 3\n'
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
def folder(tiny_folder, tmp_path):
    models = tmp_path / "models"
    models.mkdir()
    shutil.copy(tiny_folder / "tiny.gguf", models / "tiny.gguf")
    shutil.copy(tiny_folder / "tiny.gguf", models / "plain.gguf")
    (models / "presets.toml").write_text(PRESETS)
    return models


def n_tokens(reply):
    return reply.json()["usage"]["completion_tokens"], reply.json()["usage"]["prompt_tokens"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/v1/inference/chat"])
def test_preset_applies_in_every_dialect(app_with, folder, path):
    with app_with(models_dir=folder, chat_template=TEMPLATE, models_max=2) as client:

        def ask(model, **fields):
            body = {"model": model, "messages": HI, "ignore_eos": True, **fields}
            return n_tokens(client.post(path, json=body))

        n_made, n_prompt = ask("tiny")
        assert n_made == 3 and n_prompt > ask("plain", max_tokens=1)[1]
        assert ask("tiny", max_tokens=5)[0] == 5
        own = [{"role": "system", "content": "S"}, *HI]
        assert ask("tiny", messages=own)[1] == ask("plain", messages=own, max_tokens=1)[1]
        assert client.get("/api/v1/models/tiny").json()["context_length"] == 128
        assert client.app.state.models.ready("tiny").llm.ctx == 128


def test_prompts_and_props_have_the_sampling_of_the_preset(app_with, folder):
    with app_with(models_dir=folder, models_max=2) as client:
        body = {"model": "tiny", "prompt": "a", "ignore_eos": True}
        assert n_tokens(client.post("/v1/completions", json=body))[0] == 3
        assert client.post("/completion", json=body).json()["tokens_predicted"] == 3
        params = client.get("/props", params={"model": "tiny"}).json()["default_generation_settings"]["params"]
        assert (params["temperature"], params["n_predict"]) == (0.0, 3)
        listed = {model["name"]: model["context_length"] for model in client.get("/api/v1/models").json()}
        assert listed == {"tiny": 128, "plain": 512}


REGEX = '[tiny]\nregex = "preset!"\nmax_tokens = 20\n'


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/v1/messages", lambda reply: reply["content"][0]["text"]),
        ("/api/chat", lambda reply: reply["message"]["content"]),
        ("/v1/chat/completions", lambda reply: reply["choices"][0]["message"]["content"]),
    ],
)
@pytest.mark.parametrize("place", ["", "hf/someone/some-repo"])
def test_preset_sampling_applies_wherever_its_model_is(app_with, tiny_folder, tmp_path, path, text, place):
    folder = tmp_path / "models" / place
    folder.mkdir(parents=True)
    shutil.copy(tiny_folder / "tiny.gguf", folder / "tiny.gguf")
    (folder / "presets.toml").write_text(REGEX)
    with app_with(models_dir=tmp_path / "models", chat_template=TEMPLATE) as client:
        (model,) = [model["id"] for model in client.get("/v1/models").json()["data"]]
        body = {"model": model, "messages": HI, "max_tokens": 20, "stream": False}
        assert text(client.post(path, json=body).json()) == "preset!"


def test_loaded_model_keeps_the_preset_of_its_load(app_with, folder):
    body = {"model": "tiny", "prompt": "a", "ignore_eos": True}
    with app_with(models_dir=folder) as client:
        assert n_tokens(client.post("/v1/completions", json=body))[0] == 3
        (folder / "presets.toml").write_text("[tiny]\nmax_tokens = 7\n")
        assert n_tokens(client.post("/v1/completions", json=body))[0] == 3
        client.post("/models/unload", json={"model": "tiny"})
        assert n_tokens(client.post("/v1/completions", json=body))[0] == 7


def test_invalid_preset_file_is_rejected_where_its_model_is_used(app_with, folder):
    (folder / "presets.toml").write_text("[tiny]\ntop_p = 7\n")
    with app_with(models_dir=folder) as client:
        reply = client.post("/v1/completions", json={"model": "tiny", "prompt": "a"})
        assert reply.status_code == 422 and "top_p is 7" in reply.json()["error"]["message"]
        assert client.post("/v1/completions", json={"model": "plain", "prompt": "a"}).status_code == 200
