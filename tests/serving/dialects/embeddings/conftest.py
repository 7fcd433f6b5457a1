"""An app over a chat model and models that read, all behind one port."""

import pytest
from fastapi.testclient import TestClient

from tests.cases.texts import write_readers
from tests.cases.tiny import TINY, write_tiny
from woolly.serving import Settings, create_app


@pytest.fixture(scope="session")
def readers(tmp_path_factory):
    folder = write_readers(tmp_path_factory.mktemp("readers"), "embedder", "ranker", "judge", "classifier")
    write_tiny(TINY["llama"], folder / "tiny.gguf")
    return folder


@pytest.fixture(scope="module")
def client(readers, tmp_path_factory):
    sessions = tmp_path_factory.mktemp("sessions") / "sessions.db"
    settings = Settings(models_dir=readers, model=str(readers / "tiny.gguf"), threads=1, sessions_file=sessions)
    with TestClient(create_app(settings)) as client:
        yield client
