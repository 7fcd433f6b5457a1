"""woolly serve --stages: a server whose model lies in other processes."""

import pytest

from tests.cluster.stages import TOKEN, names, on_threads, token_file
from woolly.engine.loading import memory_estimate
from woolly.errors import RequestError
from woolly.runtime import Stages
from woolly.serving.settings.table import Settings

BODY = {"prompt": "the sheep and", "max_tokens": 8, "seed": 3, "temperature": 0.8, "ignore_eos": True}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("WOOLLY_HOME", str(tmp_path / "home"))


def text_of(reply):
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["text"]


def test_server_over_stages_answers_like_one_process_and_needs_no_weight_memory(
    app_with, tiny_folder, tmp_path, monkeypatch
):
    model = tiny_folder / "tiny.gguf"
    with app_with(model=str(model)) as client:
        want = text_of(client.post("/v1/completions", json=BODY))
    monkeypatch.setattr(memory_estimate, "available_memory", lambda: 101_000_000)  # of which 100 MB are allowed for
    with on_threads(model, 2) as stages:
        given = {"model": str(model), "stages": tuple(names(stages)), "stage_token_file": token_file(tmp_path)}
        with app_with(**given) as client:
            assert text_of(client.post("/v1/completions", json=BODY)) == want


def test_lost_stage_is_a_503_that_names_it(app_with, tiny_folder, tmp_path, monkeypatch):
    model = tiny_folder / "tiny.gguf"
    with on_threads(model, 2) as stages:
        listed = names(stages)
        parsed = Stages.parse(listed, token_file(tmp_path))
        monkeypatch.setattr(Stages, "parse", lambda *_: Stages(parsed.places, TOKEN, patience=0.0))
        given = {"model": str(model), "stages": tuple(listed), "stage_token_file": token_file(tmp_path)}
        with app_with(**given) as client:
            text_of(client.post("/v1/completions", json=BODY))
            stages[1].close()
            reply = client.post("/v1/completions", json=BODY)
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "stage_lost")
            assert listed[1] in reply.json()["error"]["message"] and "Retry-After" in reply.headers


def test_stages_need_a_named_model():
    with pytest.raises(RequestError, match="stages need a model"):
        Settings(stages=("127.0.0.1:1",))
    with pytest.raises(RequestError, match="stages serve one engine at a time"):
        Settings(model="m.gguf", stages=("127.0.0.1:1",), replicas=2)
