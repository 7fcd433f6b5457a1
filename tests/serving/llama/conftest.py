"""The same app over a tiny model that Ole's tests use."""

from tests.serving.ole.conftest import app_with, client, tiny_folder  # noqa: F401
