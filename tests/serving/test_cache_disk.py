"""--cache-disk over HTTP: a restarted server answers from the pages of the one before, and says so."""

import logging

import pytest

from tests.cases.hybrids import HYBRIDS
from tests.cases.tiny import write_tiny
from woolly.cache.disk_tier import DiskTier

BODY = {"prompt": "wool " * 40, "max_tokens": 3, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def app(app_with, tmp_path, monkeypatch):
    monkeypatch.setenv("WOOLLY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(
        DiskTier, "is_faster_than_recompute", lambda self, n_bytes, n_tokens: True
    )  # a tiny model computes faster than it reads
    return lambda **settings: app_with(cache_disk="50MB", **settings)


def ask(client):
    reply = client.post("/v1/completions", json=BODY).json()
    return reply["choices"][0]["text"], reply["usage"]["prompt_tokens_details"]["cached_tokens"]


def gauge(client, name):
    lines = client.get("/metrics").text.splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))


def test_restarted_server_finds_the_prompt_and_reports_cached_tokens(app, tmp_path):
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


def test_health_shows_the_proven_identity_unless_the_server_has_keys(app_with, app, tmp_path):
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


def test_reply_says_where_its_prompt_diverged(app_with, caplog):
    def chat(client, system, **more):
        messages = [{"role": "system", "content": system}, {"role": "user", "content": "hi"}]
        return client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1, **more})

    caplog.set_level(logging.INFO, "woolly.serving")
    with app_with() as client:
        assert chat(client, "wool " * 40 + "monday " * 20).headers["x-woolly-cache"].endswith(", cold")
        note = chat(client, "wool " * 40 + "tuesday " * 20).headers["x-woolly-cache"]
        n_cached, n_prompt = (int(word) for word in note.split() if word.isdecimal())
        assert 0 < n_cached < n_prompt and ", diverged at token " in note and "uesday" in note.partition(": ")[2]
        stream = chat(client, "wool " * 40 + "friday " * 20, stream=True).text
        assert "friday" in stream.partition('"cache_note":')[2]
    answered = [record for record in caplog.records if record.message == "answered"]
    assert [record.cached_tokens for record in answered] == [0, n_cached, n_cached]
    assert "diverged at token" in answered[1].cache
    assert all("uesday" not in str(vars(record)) for record in caplog.records)  # prompts are no part of a log


def test_hybrid_chat_continues_after_the_system_prompt_of_another(app_with, tmp_path):
    def cached(client, system, said):
        messages = [{"role": "system", "content": system}, {"role": "user", "content": said}]
        reply = client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1, "ignore_eos": True})
        return reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    (folder := tmp_path / "models").mkdir()
    write_tiny(HYBRIDS["qwen35"], folder / "hybrid.gguf")
    with app_with(models_dir=folder) as client:
        assert cached(client, "wool " * 40, "Which sheep gives the finest of all, and why?") == 0
        assert cached(client, "wool " * 40, "What is felt?") >= 160
        assert cached(client, "yarn " * 40, "What is felt?") == 0
