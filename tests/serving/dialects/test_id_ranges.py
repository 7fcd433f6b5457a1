"""Ids in requests: checked before they become keys, since Python's hashes of multiples of 2**61 - 1 are all 0."""

import pytest

M = 2**61 - 1
IDS = [i * M for i in range(1, 3000)]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/completions", {"prompt": "a", "logit_bias": {str(i): 1 for i in IDS}}, "logit_bias"),
        ("/completion", {"prompt": "a", "logit_bias": [[i, 1] for i in IDS]}, "logit_bias"),
        ("/completion", {"prompt": "a", "logit_bias": [[-1, 1]]}, "logit_bias"),
        ("/completion", {"prompt": "a", "lora": [{"id": i, "scale": 1} for i in IDS]}, "lora"),
        ("/lora-adapters", [{"id": i, "scale": 1} for i in IDS], "lora"),
    ],
)
def test_id_out_of_range_is_rejected(client, path, body, field):
    reply = client.post(path, json=body)
    assert reply.status_code == 400
    assert field in reply.text and "2147483647" in reply.text


def test_too_many_sequence_breakers_are_rejected(client):
    body = {"prompt": "a", "dry_multiplier": 1, "dry_sequence_breakers": [f"a{i}" for i in range(33)]}
    reply = client.post("/completion", json=body)
    assert reply.status_code == 400
    assert "dry_sequence_breakers has 33 strings, but the limit is 32" in reply.text
