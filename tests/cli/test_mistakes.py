"""Mistakes of users: each is answered by one sentence that says what to do."""

import pytest
from fastapi.testclient import TestClient

from tests.cases import mistakes
from woolly import LLM
from woolly.serving import Settings, create_app


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_model):
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "tiny.gguf").write_bytes(tiny_model.read_bytes())
    mistakes.write_files(folder, tiny_model)
    return folder


def check(found):
    """Assert that sentences have advice, and are sentences."""
    assert not [(what, said) for what, said in found if not mistakes.has_advice(said)]
    assert not [(what, said) for what, said in found if "\n" in said or ",," in said or len(said) > 400]


def test_every_mistake_on_the_command_line_has_advice(folder, monkeypatch):
    monkeypatch.setenv("WOOLLY_HOME", str(folder / "home"))
    found = list(mistakes.command_sentences(folder / "tiny.gguf", folder, mistakes.run_line))
    assert len(found) > 80
    check(found)


def test_every_mistake_in_a_call_has_advice(folder):
    with LLM(folder / "tiny.gguf", threads=1, ctx=256) as llm:
        check(list(mistakes.call_sentences(llm, folder)))


def test_every_mistake_in_a_request_has_advice(folder):
    settings = Settings(model=folder / "tiny.gguf", threads=1, ctx_size=256, sessions_file=folder / "s.db")
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        check(list(mistakes.request_sentences(client)))
