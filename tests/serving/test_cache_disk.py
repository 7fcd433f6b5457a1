"""--cache-disk over HTTP: a restarted server answers from the pages of the one before, and says so."""

import pytest

from woolly.cache.tier import DiskTier

BODY = {"prompt": "wool " * 40, "max_tokens": 3, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def app(app_with, tmp_path, monkeypatch):
    monkeypatch.setenv("WOOLLY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(
        DiskTier, "is_worth", lambda self, n_bytes, n_tokens: True
    )  # a tiny model computes faster than it reads
    return lambda **settings: app_with(cache_disk="50MB", **settings)


def ask(client):
    reply = client.post("/v1/completions", json=BODY).json()
    return reply["choices"][0]["text"], reply["usage"]["prompt_tokens_details"]["cached_tokens"]


def gauge(client, name):
    lines = client.get("/metrics").text.splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))


def test_a_restarted_server_finds_the_prompt_and_tells_how_much(app, tmp_path):
    with app() as client:
        text, cached = ask(client)
        assert cached == 0 and gauge(client, "woolly_cache_disk_tokens_read") == 0
    assert list((tmp_path / "home" / "pages").glob("*/*/*.page"))
    with app() as client:
        again, cached = ask(client)
        assert again == text and cached >= 160
        assert gauge(client, "woolly_cache_disk_tokens_read") == cached
        assert gauge(client, "woolly_cache_disk_files") >= cached // 32
        assert gauge(client, "woolly_cache_disk_damaged") == 0


def test_health_shows_the_identity_that_was_proved_unless_the_server_has_keys(app_with, app, tmp_path):
    with app() as client:
        client.app.state.health.set("ready")
        assert "identity" not in client.get("/health").json()  # nothing is loaded
        ask(client)
        (identity,) = client.get("/health").json()["identity"].values()
        assert identity.startswith("w")
    with app_with(probe=True, api_key=("k" * 8,)) as client:
        client.app.state.health.set("ready")
        assert client.post("/v1/completions", json=BODY, headers={"X-API-Key": "k" * 8}).status_code == 200
        assert "identity" not in client.get("/health").json()
