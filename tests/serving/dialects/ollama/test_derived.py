"""/api/create, /api/copy and /api/delete: names that requests make, if the operator allows it."""

import json
import shutil

import pytest

from woolly.store import PRESETS_FILE

ECHO = "{% for message in messages %}{{ message.role + ':' + message.content + ';' }}{% endfor %}"
TALK = [{"role": "user", "content": "hi"}]


@pytest.fixture
def maker(app_with, tmp_path, tiny_folder):
    folder = tmp_path / "models"
    folder.mkdir()
    shutil.copy(tiny_folder / "tiny.gguf", folder)
    with app_with(models_dir=folder, allow_changes=True, chat_template=ECHO, verbose=True) as client:
        client.folder = folder
        yield client


def create(client, **body):
    return client.post("/api/create", json={"model": "pirate", "from": "tiny", "stream": False, **body})


def prompt_of(client, model, **fields):
    body = {"model": model, "messages": TALK, "max_tokens": 1, **fields}
    reply = client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()["__verbose"]["prompt"]


def test_derived_model_answers_immediately_with_its_system_prompt(maker):
    assert create(maker, system="Say arr.").json() == {"status": "success"}
    assert prompt_of(maker, "pirate") == prompt_of(maker, "Pirate:latest") == "system:Say arr.;user:hi;"
    own = [{"role": "system", "content": "Be kind."}, *TALK]
    assert prompt_of(maker, "pirate", messages=own) == "system:Be kind.;user:hi;"
    assert prompt_of(maker, "tiny") == "user:hi;"
    body = {"model": "pirate", "messages": TALK, "stream": False, "options": {"num_predict": 1}}
    reply = maker.post("/api/chat", json=body).json()
    body = {"model": "pirate", "messages": TALK}
    counted = maker.post("/v1/chat/completions/input_tokens", json=body).json()["input_tokens"]
    plain = maker.post("/v1/chat/completions/input_tokens", json={**body, "model": "tiny"}).json()["input_tokens"]
    assert (reply["model"], reply["prompt_eval_count"]) == ("pirate", counted) and counted > plain


def test_options_of_a_derived_model_are_request_defaults(maker):
    assert (
        create(maker, parameters={"num_predict": 3, "temperature": 0, "stop": "zzz", "num_ctx": 64}).status_code == 200
    )
    body = {"model": "pirate", "prompt": "a", "stream": False}
    assert maker.post("/api/generate", json=body).json()["eval_count"] == 3
    body["options"] = {"num_predict": 2}
    assert maker.post("/api/generate", json=body).json()["eval_count"] == 2
    shown = maker.post("/api/show", json={"model": "pirate"}).json()
    assert "num_predict 3" in shown["parameters"] and "temperature 0" in shown["parameters"]
    assert "PARAMETER num_ctx 64" in shown["modelfile"] and "num_ctx 64" in shown["parameters"]
    assert shown["model_info"]["llama.context_length"] == 64


def test_derived_model_is_listed_with_its_base(maker):
    create(maker, system="Say arr.")
    listed = {one["name"]: one for one in maker.get("/api/tags").json()["models"]}
    assert listed.keys() == {"tiny:latest", "pirate:latest"}
    assert listed["pirate:latest"]["details"]["parent_model"] == "tiny"
    assert [one["id"] for one in maker.get("/v1/models").json()["data"]] == ["tiny", "pirate"]
    shown = maker.post("/api/show", json={"model": "pirate"}).json()
    assert shown["system"] == "Say arr." and "FROM tiny.gguf" in shown["modelfile"]


def test_copy_inherits_and_outlives_its_base(maker):
    create(maker, system="Say arr.", parameters={"num_predict": 3})
    assert maker.post("/api/copy", json={"source": "pirate", "destination": "parrot"}).status_code == 200
    assert maker.request("DELETE", "/api/delete", json={"model": "pirate"}).status_code == 200
    assert prompt_of(maker, "parrot") == "system:Say arr.;user:hi;"
    assert (
        maker.post("/api/generate", json={"model": "parrot", "prompt": "a", "stream": False}).json()["eval_count"] == 3
    )
    assert maker.post("/api/generate", json={"model": "pirate", "prompt": "a"}).status_code == 404


def test_stream_ends_with_success(maker):
    lines = [json.loads(line) for line in create(maker, stream=None).text.splitlines()]
    assert lines[-1] == {"status": "success"}


@pytest.mark.parametrize(
    ("fields", "status", "says"),
    [
        ({"template": "{{ x }}"}, 400, "template"),
        ({"files": {"a": "sha256:0"}}, 400, "files"),
        ({"adapters": {"a": "sha256:0"}}, 400, "adapters"),
        ({"messages": TALK}, 400, "messages"),
        ({"from": None}, 400, "from"),
        ({"from": "nothing"}, 404, "'nothing' not found"),
        ({"model": "../x"}, 400, "model"),
        ({"model": ""}, 400, "model"),
        ({"model": "tiny"}, 400, "name of a model file"),
        ({"parameters": {"top_k": "x"}}, 400, "options.top_k"),
        ({"parameters": {"top_p": 2}}, 400, "top_p"),
        ({"parameters": {"num_ctx": -1}}, 400, "num_ctx"),
    ],
)
def test_invalid_modelfile_is_rejected(maker, fields, status, says):
    reply = create(maker, **fields)
    assert reply.status_code == status and says in reply.json()["error"], reply.text
    assert not (maker.folder / PRESETS_FILE).exists()


def test_base_model_files_are_kept(maker):
    reply = maker.request("DELETE", "/api/delete", json={"model": "tiny"})
    assert reply.status_code == 403 and "woolly rm" in reply.json()["error"]
    assert maker.request("DELETE", "/api/delete", json={"model": "nothing"}).status_code == 404
    assert (maker.folder / "tiny.gguf").exists()


def test_creating_needs_the_setting_and_a_key_with_load_rights(app_with):
    body = {"model": "pirate", "from": "tiny"}
    with app_with() as client:
        for method, path in (("POST", "/api/create"), ("POST", "/api/copy"), ("DELETE", "/api/delete")):
            given = {"source": "tiny", "destination": "x"} if path == "/api/copy" else body if method == "POST" else {}
            reply = client.request(method, path, json={**given} or {"model": "tiny"})
            assert reply.status_code == 403 and "--allow-changes" in reply.json()["error"]
    with app_with(allow_changes=True, api_key=("user",), admin_key=("boss",)) as client:
        assert client.post("/api/create", json=body, headers={"x-api-key": "user"}).status_code == 403


def test_derived_model_inherits_load_settings(maker):
    (maker.folder / PRESETS_FILE).write_text('[long]\nfrom = "tiny"\nctx = 96\n')
    assert create(maker, **{"from": "long"}, system="Say arr.").status_code == 200
    assert '[pirate]\nfrom = "tiny"\nsystem = "Say arr."\nctx = 96\n' in (maker.folder / PRESETS_FILE).read_text()
    assert prompt_of(maker, "pirate") == "system:Say arr.;user:hi;"
    assert {one["name"] for one in maker.get("/api/tags").json()["models"]} == {
        "tiny:latest", "long:latest", "pirate:latest",
    }  # fmt: skip
    assert [(one["name"], one["context_length"]) for one in maker.get("/api/ps").json()["models"]] == [
        ("long:latest", 96)
    ]
