"""The app in this process, over a tiny random model."""

import pytest
from fastapi.testclient import TestClient

from tests.cases.tiny import TINY, write_tiny
from woolly.serving import Settings, create_app


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_tiny(TINY["llama"], folder / "tiny.gguf")
    return folder


@pytest.fixture
def app_with(tiny_folder, tmp_path):
    """Makes an app with settings of the test's own; `with app_with(...) as client:`."""

    def make(**settings):
        settings = {"sessions_file": tmp_path / "sessions.db", "threads": 1, **settings}
        return TestClient(create_app(Settings(models_dir=tiny_folder, **settings)))

    return make


@pytest.fixture
def client(app_with):
    with app_with() as client:
        yield client
