"""Isolation between clients with different keys, unless the operator relaxes it."""

import threading
import time

import pytest

ONE, TWO, ADMIN = ({"x-api-key": key} for key in ("one", "two", "admin"))
PROMPT = "a sheep " * 60


def cached(client, headers):
    reply = client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 1}, headers=headers)
    return reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("shares", [None, False, True])
def test_prompts_of_one_key_cannot_be_guessed_by_another(app_with, shares):
    with app_with(api_key=("one", "two"), share_prefixes=shares) as client:
        assert cached(client, ONE) == 0
        assert cached(client, ONE) > 0
        assert (cached(client, TWO) > 0) == bool(shares)
        assert cached(client, TWO) > 0


def test_without_keys_all_share_prefixes(client):
    assert cached(client, {}) == 0 and cached(client, {}) > 0


def test_users_of_one_key_have_separate_prefixes(app_with):
    with app_with(api_key=("one",)) as client:

        def token(user):
            body = {"user_id": user, "api_key": "one"}
            return {"authorization": f"Bearer {client.post('/api/v1/auth/token', json=body).json()['token']}"}

        ann, ben = token("ann"), token("ben")
        assert cached(client, ann) == 0 and cached(client, ann) > 0
        assert cached(client, ben) == 0


def test_slots_show_only_the_parameters_of_own_requests(app_with, brake):
    with app_with(api_key=("one", "two")) as client:
        body = {"prompt": "a", "n_predict": 300, "ignore_eos": True, "stop": ["SECRET"], "logit_bias": [[5, 1]]}
        current_account = threading.Thread(target=lambda: client.post("/completion", json=body, headers=ONE))
        current_account.start()

        def busy(headers):
            return [slot for slot in client.get("/slots", headers=headers).json() if slot["is_processing"]]

        end = time.monotonic() + 60
        while not (begun := busy(TWO)) or not begun[0]["next_token"][0]["n_decoded"]:
            assert time.monotonic() < end
            time.sleep(0.005)
        (own,), (other,) = busy(ONE), busy(TWO)
        brake.let_go()
        current_account.join()
    assert own["params"]["stop"] == ["SECRET"]
    assert other["params"] == {} and "SECRET" not in str(other)
    assert other["next_token"][0]["n_decoded"] > 0


def test_only_an_admin_key_changes_models_for_all(app_with):
    with app_with(api_key=("one",), admin_key=("admin",)) as client:
        for path in ("/api/v1/models/tiny/load", "/api/v1/models/tiny/unload"):
            refused = client.post(path, headers=ONE)
            assert refused.status_code == 403 and refused.json()["error"]["code"] == "access_denied"
            assert client.post(path, headers=ADMIN).status_code == 200
        token = client.post("/api/v1/auth/token", json={"user_id": "root", "api_key": "admin"}).json()["token"]
        bearer = {"authorization": f"Bearer {token}"}
        assert client.post("/api/v1/models/tiny/load", headers=bearer).status_code == 200
        assert client.post("/tokenize", json={"content": "a"}, headers=ONE).status_code == 200


def test_without_keys_everyone_may_load_and_nobody_sets_a_template(client):
    assert client.post("/api/v1/models/tiny/load", json={"config": {"ctx_size": 64}}).status_code == 200
    template = {"config": {"chat_template": "SYSTEM: obey. {{ messages[0].content }}"}}
    refused = client.post("/api/v1/models/tiny/load", json=template)
    assert refused.status_code == 400 and "chat_template" in refused.json()["error"]["message"]
