"""Model names of requests: short forms, names that clients have built in, and errors with suggestions."""

import logging

import pytest

from tests.cases.tiny import TINY, write_tiny

SHORT = "qwen2.5-coder-0.5b"


@pytest.fixture
def chosen(tmp_path, app_with):
    """Returns a server of two chat models, of which `main.gguf` is --model."""
    folder = tmp_path / "models"
    folder.mkdir()
    write_tiny(TINY["llama"], folder / "main.gguf")
    write_tiny(TINY["qwen2"], folder / f"{SHORT}-instruct-q4_k_m.gguf")
    return lambda **settings: app_with(
        models_dir=folder, **{"model": str(folder / "main.gguf"), "strict_models": False, **settings}
    )


def ask(client, model):
    return client.post("/v1/completions", json={"model": model, "prompt": "a", "max_tokens": 1})


@pytest.mark.parametrize("name", ["nosuchmodel", "llama3", "qwen2.5", "gpt-oss:20b", "mein"])
def test_unknown_name_returns_404_and_unloads_nothing(chosen, name):
    with chosen() as client:
        assert ask(client, SHORT).status_code == 200
        reply = ask(client, name)
        assert reply.status_code == 404 and reply.json()["error"]["code"] == "model_not_found"
        loaded = [one["model"] for one in client.get("/api/ps").json()["models"]]
        assert loaded == [f"{SHORT}-instruct-q4_k_m:latest"]


def test_error_suggests_similar_names(chosen):
    with chosen() as client:
        assert ask(client, "mian").json()["error"]["message"].endswith("did you mean main?")
        assert (
            ask(client, "qwen2.5-coder-0.5b-q4").json()["error"]["message"].endswith("use one of the available models")
        )
        shown = client.post("/api/show", json={"model": SHORT}).json()["error"]
        assert shown.endswith(f"did you mean {SHORT}-instruct-q4_k_m?")


def test_short_form_means_the_only_model_that_fits(chosen, tmp_path):
    with chosen() as client:
        for name in (SHORT, "Qwen/Qwen2.5-Coder-0.5B-Instruct", "qwen2.5-coder", "qwen2.5-coder:0.5b"):
            reply = ask(client, name)
            assert reply.json()["model"] == f"{SHORT}-instruct-q4_k_m"
            assert "x-woolly-ignored" not in reply.headers
    write_tiny(TINY["qwen2"], tmp_path / "models" / f"{SHORT}-instruct-q8_0.gguf")
    with chosen() as client:
        reply = ask(client, SHORT)
        names = f"{SHORT}-instruct-q4_k_m or {SHORT}-instruct-q8_0"
        assert reply.status_code == 404 and reply.json()["error"]["message"].endswith(f"did you mean {names}?")


@pytest.mark.parametrize("name", ["gpt-4o", "claude-sonnet-4-5", "models/gemini-2.5-pro", "openai/gpt-5", "default"])
def test_names_of_clouds_go_to_the_main_model_with_a_warning(chosen, name, caplog):
    caplog.set_level(logging.WARNING, "woolly.serving")
    with chosen() as client:
        for _ in range(2):
            reply = ask(client, name)
            assert reply.json()["model"] == "main" and name in reply.headers["x-woolly-ignored"]
    warned = [one for one in caplog.records if one.message == "another model answers"]
    assert [(one.requested, one.model, one.levelname) for one in warned] == [(name, "main", "WARNING")]


def test_names_of_clouds_never_unload_a_model_that_can_answer(chosen):
    with chosen() as client:
        assert ask(client, SHORT).status_code == 200
        assert ask(client, "gpt-4o").json()["model"] == f"{SHORT}-instruct-q4_k_m"


def test_names_of_clouds_are_unknown_without_a_main_model(chosen):
    with chosen(model=None) as client:
        assert ask(client, "gpt-4o").status_code == 404


@pytest.mark.parametrize("name", ["gpt-4o", SHORT, "nosuchmodel"])
def test_strict_models_accepts_listed_names_only(chosen, name):
    with chosen(strict_models=True) as client:
        assert ask(client, name).status_code == 404
        for same in ("MAIN", "main.gguf", f"{SHORT}_instruct:q4_k_m"):
            assert ask(client, same).status_code == 200


def test_only_model_answers_to_any_name_with_a_warning(app_with, caplog):
    caplog.set_level(logging.WARNING, "woolly.serving")
    with app_with(strict_models=False) as client:
        assert ask(client, "nosuchmodel").json()["model"] == "tiny"
    assert [one.requested for one in caplog.records if one.message == "another model answers"] == ["nosuchmodel"]


@pytest.mark.parametrize("strict", [False, True])
def test_name_of_excessive_length_is_unknown_even_to_the_only_model(app_with, strict, caplog):
    caplog.set_level(logging.WARNING, "woolly.serving")
    with app_with(strict_models=strict) as client:
        reply = ask(client, "gpt-4o" + "x" * 100_000)
        message = reply.json()["error"]["message"]
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")
        assert "at most 500 characters, but got 100006" in message and len(message) < 300
        if not strict:
            assert ask(client, "n" * 500).json()["model"] == "tiny"
    assert [len(one.requested) for one in caplog.records if one.message == "another model answers"] == [200] * (
        not strict
    )


@pytest.mark.parametrize("place", ["{home}/else", "../else", "~/else"])
def test_missing_base_of_a_derived_model_is_named_without_its_path(chosen, tmp_path, place):
    base = f"{place.format(home=tmp_path.as_posix())}/m.gguf"
    (tmp_path / "models" / "presets.toml").write_text(f'[pirate]\nfrom = "{base}"\n')
    with chosen() as client:
        reply = ask(client, "pirate")
    message = reply.json()["error"]["message"]
    assert reply.status_code == 404 and "else" not in reply.text
    assert message.startswith("the model pirate needs the file m.gguf, which is not in the models folder")
