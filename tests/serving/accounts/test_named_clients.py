"""Named keys at a server: limits, models, usage, and a file that changes."""

import json
import re

import pytest

from tests.cases.tiny import TINY, write_tiny
from woolly.serving.accounts.keys_file import add_key, remove_key
from woolly.serving.accounts.usage_ledger import read_usage
from woolly.serving.lifecycle.reload import Reloader

BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
    "/v1/completions": {"prompt": "Hi", "max_tokens": 2},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 2},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
    "/api/chat": {"messages": [{"role": "user", "content": "Hi"}], "stream": False, "options": {"num_predict": 2}},
    "/completion": {"prompt": "Hi", "n_predict": 2},
    "/v1beta/models/tiny:generateContent": {"contents": [{"parts": [{"text": "Hi"}]}]},
    "/api/v1/inference/chat": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("team-models")
    for name in ("tiny", "other"):
        write_tiny(TINY["llama"], folder / f"{name}.gguf")
    (folder / "presets.toml").write_text('[fast]\nfrom = "other"\ntemperature = 0.0\n')
    return folder


@pytest.fixture
def team(app_with, tmp_path, models):
    """Makes an app with keys of their own; returns it, and the headers of each key."""

    def make(models_max=1, **keys):
        file = tmp_path / "keys.toml"
        heads = {
            name: {"Authorization": f"Bearer {add_key(file, name, **{'limits': {}, **given})}"}
            for name, given in keys.items()
        }
        own = {"keys_file": file, "usage_file": tmp_path / "usage.db", "models_dir": models}
        return app_with(**own, ctx_size=64, models_max=models_max), heads

    return make


def ask(client, head, path="/v1/chat/completions", **more):
    body = {**BODIES[path], **({} if "v1beta" in path else {"model": "tiny"}), **more}
    return client.post(path, headers=head, json=body)


def test_key_over_its_limit_gets_429_in_the_format_of_each_api(team):
    client, heads = team(anna={"limits": {"requests_per_day": 1}}, ole={})
    with client:
        assert client.post("/v1/chat/completions", json=BODIES["/v1/chat/completions"]).status_code == 401
        reply = ask(client, heads["anna"])
        assert reply.status_code == 200
        assert reply.headers["x-ratelimit-limit-requests"] == "1"
        assert reply.headers["x-ratelimit-remaining-requests"] == "0"
        assert re.fullmatch(r"(\d+h)?(\d+m)?\d+s", reply.headers["x-ratelimit-reset-requests"])
        for path in BODIES:
            reply = ask(client, heads["anna"], path)
            assert reply.status_code == 429, (path, reply.text)
            assert 1 <= int(reply.headers["retry-after"]) <= 86_400
            assert "the key anna has reached its limit of 1 requests per day" in json.dumps(reply.json()), path
        assert "error" in reply.json() or "detail" in reply.json()
        assert ask(client, heads["anna"], "/v1/messages").json()["error"]["type"] == "rate_limit_error"
        reply = ask(client, heads["ole"])
        assert reply.status_code == 200 and not [name for name in reply.headers if "ratelimit" in name]


def test_key_sees_and_uses_only_its_models(team):
    client, heads = team(anna={"models": ("fast",)}, ole={"models": ("tiny",)}, boss={"is_admin": True})
    with client:

        def names(head):
            return {one["id"] for one in client.get("/v1/models", headers=head).json()["data"]}

        assert [names(heads[name]) for name in ("anna", "ole", "boss")] == [
            {"fast"},
            {"tiny"},
            {"tiny", "other", "fast"},
        ]
        assert {one["name"] for one in client.get("/api/tags", headers=heads["ole"]).json()["models"]} == {
            "tiny:latest"
        }
        assert ask(client, heads["anna"], model="fast").status_code == 200
        loaded = {name: client.get("/api/ps", headers=heads[name]).json()["models"] for name in ("ole", "boss")}
        assert [one["name"] for one in loaded["boss"]] == ["other:latest"] and loaded["ole"] == []
        for wrong in ("tiny", "other"):
            reply = ask(client, heads["anna"], model=wrong)
            assert reply.status_code == 403 and reply.json()["error"]["code"] == "model_not_allowed"
            assert f"the key anna may not use {wrong}; it may use fast" in reply.json()["error"]["message"]
        # Without a name, the model that is loaded does not answer a key that may not use it.
        reply = client.post("/v1/chat/completions", headers=heads["ole"], json=BODIES["/v1/chat/completions"])
        assert reply.status_code == 200 and reply.json()["model"] == "tiny"
        assert ask(client, heads["ole"], model="fast").status_code == 403
        assert client.get("/v1/models/tiny", headers=heads["anna"]).status_code == 403
        # A name that is not here is no way to learn the others.
        for path in ("/v1/models/none", "/api/v1/models/none"):
            reply = client.get(path, headers=heads["ole"])
            assert reply.status_code == 404 and "available: tiny = " in reply.text and "other" not in reply.text


def test_key_sees_no_statistics_of_other_models(team):
    client, heads = team(models_max=2, ole={"models": ("tiny",)}, boss={"is_admin": True})
    with client:
        for model in ("tiny", "other"):  # the last one used is not Ole's
            assert ask(client, heads["boss"], model=model).status_code == 200

        def seen(name):
            text = client.get("/metrics", headers=heads[name]).text
            return set(re.findall(r'model="([^"]*)"', text)), "llamacpp:tokens_predicted_total" in text

        assert seen("boss") == ({"tiny", "other"}, True) and seen("ole") == ({"tiny"}, True)
        stats = "/api/v1/performance/stats"
        assert client.get(stats, headers=heads["boss"]).json()["model"] == "other"
        for query, model in (("", "tiny"), ("?model=tiny", "tiny"), ("?model=other", None)):
            assert client.get(stats + query, headers=heads["ole"]).json()["model"] == model


def test_usage_is_shown_only_to_its_owner_and_admins(team, tmp_path):
    client, heads = team(anna={}, boss={"is_admin": True})
    with client:
        used = [ask(client, heads[name]).json()["usage"] for name in ("anna", "anna", "boss")]
        shown = client.get("/api/v1/usage?by=key", headers=heads["boss"]).json()["usage"]
        assert [(row["key"], row["requests"]) for row in shown] == [("anna", 2), ("boss", 1)]
        assert shown[0]["prompt_tokens"] == used[0]["prompt_tokens"] + used[1]["prompt_tokens"]
        own = client.get("/api/v1/usage?by=key,model&key=boss", headers=heads["anna"]).json()["usage"]
        assert [(row["key"], row["model"]) for row in own] == [("anna", "tiny")]
        assert client.get("/api/v1/usage?by=client", headers=heads["boss"]).status_code == 400
        ask(client, heads["anna"])
    # The app has ended in between two writes: the last request is there too.
    assert read_usage(tmp_path / "usage.db", ("key",))[0]["requests"] == 3
    client, _ = team()
    with client:
        assert client.app.state.meter.ledger.usage_today()["anna"].requests == 3


def test_request_with_many_prompts_counts_once(team):
    client, heads = team(anna={})
    with client:
        for path in ("/v1/completions", "/completion"):
            assert ask(client, heads["anna"], path, prompt=["One", "Two", "Three"]).status_code == 200
        (row,) = client.get("/api/v1/usage?by=key", headers=heads["anna"]).json()["usage"]
        assert row["requests"] == 2


def test_keys_can_change_while_the_server_runs(team, tmp_path):
    client, heads = team(anna={}, ole={})
    file = tmp_path / "keys.toml"
    with client:
        reloader = Reloader(client.app.state.settings, client.app.state.authenticator)

        def status(name):
            return client.get("/v1/models", headers=heads[name]).status_code

        assert (status("anna"), status("ole")) == (200, 200)
        remove_key(file, "ole")
        key = add_key(file, "mia", limits={})
        reloader.check()
        heads["mia"] = {"x-api-key": key}
        assert (status("anna"), status("ole"), status("mia")) == (200, 401, 200)
        for wrong in ("[keys", "", "[keys.anna]\nhash = 1\n"):
            file.write_text(wrong)
            reloader.check()
            assert (status("anna"), status("ole"), status("mia")) == (200, 401, 200)
