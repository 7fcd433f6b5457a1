"""Adapters of a server: how much each counts, for all requests and for one."""

import shutil

import pytest

from tests.engine.test_adapters import lora, write_lora
from woolly.errors import RequestError
from woolly.serving import Settings

PROMPT = list(range(40, 90))


@pytest.fixture
def files(tmp_path):
    return [str(write_lora(tmp_path / f"{name}.gguf", lora(seed))) for seed, name in enumerate(("first", "second"))]


def ids(client, **fields):
    body = {"prompt": PROMPT, "n_predict": 12, "temperature": 0, "ignore_eos": True, "return_tokens": True, **fields}
    reply = client.post("/completion", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()["tokens"]


def test_chat_and_text_completions_take_scales(app_with, tiny_folder, files):
    body = {"max_tokens": 12, "temperature": 0, "ignore_eos": True, "logit_bias": {"2": -100}}
    forms = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "the hill"}]},
        "/v1/completions": {"prompt": PROMPT},
    }
    with app_with(model=str(tiny_folder / "tiny.gguf"), lora=files) as client:
        for path, form in forms.items():

            def text(path=path, form=form, **fields):
                reply = client.post(path, json={**body, **form, "return_token_ids": True, **fields})
                assert reply.status_code == 200, reply.text
                return reply.json()["choices"][0]["token_ids"]

            assert text() == text(lora=scales(1, 1)) != text(lora=[])
            assert text(lora=scales(1)) != text(lora=scales(0, 1))
            for wrong in (scales(0, 0, 1), [{"name": "first"}]):
                reply = client.post(path, json={**body, **form, "lora": wrong})
                assert reply.status_code == 400 and reply.json()["error"]["param"] in ("lora", "adapters"), reply.text


def scales(*numbers):
    return [{"id": i, "scale": number} for i, number in enumerate(numbers)]


def test_scales_apply_to_all_requests_until_changed(app_with, tiny_folder, files):
    model = str(tiny_folder / "tiny.gguf")
    with app_with(model=model, lora=files[:1], lora_scaled=(f"{files[1]}:0.5",)) as client:
        known = [{"id": 0, "path": files[0], "scale": 1.0}, {"id": 1, "path": files[1], "scale": 0.5}]
        assert client.get("/lora-adapters").json() == known
        at_first = ids(client)
        assert at_first == ids(client, lora=scales(1, 0.5))
        none = ids(client, lora=[])  # an empty list is not an adapter at all
        assert none == ids(client, lora=scales(0, 0)) != at_first
        assert client.post("/lora-adapters", json=[{"id": 1, "scale": 1}]).json() == {"success": True}
        assert [one["scale"] for one in client.get("/lora-adapters").json()] == [0.0, 1.0]
        assert ids(client) == ids(client, lora=scales(0, 1)) != at_first
        assert ids(client, lora=scales(1, 0.5)) == at_first
        for wrong in ([{"id": 2, "scale": 0}], [{"id": 0, "scale": "much"}], [{"name": "first"}]):
            reply = client.post("/lora-adapters", json=wrong)
            assert reply.status_code == 400, reply.text
        assert [one["scale"] for one in client.get("/lora-adapters").json()] == [0.0, 1.0]


def test_key_without_configuration_rights_cannot_scale_adapters(app_with, tiny_folder, files):
    model = str(tiny_folder / "tiny.gguf")
    with app_with(model=model, lora=files, api_key=("one",), admin_key=("two",)) as client:
        status = {
            key: client.post("/lora-adapters", json=[], headers={"Authorization": f"Bearer {key}"}).status_code
            for key in ("one", "two")
        }
        assert status == {"one": 403, "two": 200}


@pytest.mark.parametrize("given", ["first.gguf", "first.gguf:", ":1", "first.gguf:much", "first.gguf:inf"])
def test_scale_is_a_number_after_the_file(given):
    with pytest.raises(RequestError, match="expected FILE:SCALE") as caught:
        Settings(lora_scaled=(given,))
    assert caught.value.field == "lora_scaled"


def test_server_scales_are_separate_from_named_adapters(app_with, tiny_folder, files, tmp_path):
    names = tmp_path / "woolly.toml"
    names.write_text(f'[models.own]\nfrom = "tiny"\nlora = "{files[1]}"\n[models.none]\nfrom = "tiny"\nlora = []\n')
    given = {"model": str(tiny_folder / "tiny.gguf"), "lora_scaled": (f"{files[0]}:0",), "names_file": names}
    with app_with(**given, models_max=3) as client:
        plain = ids(client, model="none")
        assert ids(client, model="tiny") == plain  # nothing of its adapter, as the server says
        assert ids(client, model="own") == ids(client, model="own", lora=scales(1)) != plain


def test_adapters_are_added_and_removed_while_the_server_runs(app_with, tiny_folder, tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    shutil.copy(tiny_folder / "tiny.gguf", folder)
    for seed, name in enumerate(("first", "second")):
        write_lora(folder / f"{name}-lora.gguf", lora(seed))
    model = str(folder / "tiny.gguf")

    def chat(client, name):
        body = {"model": name, "prompt": PROMPT, "max_tokens": 12, "temperature": 0, "logprobs": 1}
        reply = client.post("/v1/completions", json=body)
        assert reply.status_code == 200, reply.text
        return reply.json()["choices"][0]["logprobs"]["token_logprobs"]

    def load(client, name, file, **more):
        return client.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": file, **more})

    with app_with(model=model, models_dir=folder, lora=[str(folder / "first-lora.gguf")]) as client:
        with_first, none = chat(client, "tiny"), ids(client, lora=[])
    with app_with(model=model, models_dir=folder) as client:
        plain = chat(client, "tiny")
        reply = load(client, "french", "first-lora.gguf")
        assert reply.json() == {"success": True, "model": "tiny"}
        assert load(client, "other", "second-lora.gguf", model="tiny").status_code == 200
        assert chat(client, "french") == with_first != plain
        assert chat(client, "tiny") == plain and ids(client) == none
        assert chat(client, "other") not in (plain, with_first)
        assert {"tiny", "french", "other"} <= {one["id"] for one in client.get("/v1/models").json()["data"]}
        # A model that was unloaded has them again.
        assert client.post("/models/unload", json={"model": "tiny"}).status_code == 200
        assert chat(client, "french") == with_first
        for name, file in (("french", "second-lora.gguf"), ("more", "tiny.gguf"), ("more", "../x.gguf"), ("tiny", "y")):
            assert load(client, name, file).status_code == 400
        assert client.post("/v1/unload_lora_adapter", json={"lora_name": "french"}).status_code == 200
        assert client.post("/v1/unload_lora_adapter", json={"lora_name": "french"}).status_code == 404
        assert "french" not in {one["id"] for one in client.get("/v1/models").json()["data"]}
        assert chat(client, "tiny") == plain


def test_key_without_configuration_rights_cannot_add_adapters(app_with, tiny_folder):
    with app_with(model=str(tiny_folder / "tiny.gguf"), api_key=("one",), admin_key=("two",)) as client:
        headers, body = {"Authorization": "Bearer one"}, {"lora_name": "a", "lora_path": "a.gguf"}
        assert client.post("/v1/load_lora_adapter", json=body, headers=headers).status_code == 403
        assert client.post("/v1/unload_lora_adapter", json={"lora_name": "a"}, headers=headers).status_code == 403
