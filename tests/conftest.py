"""What all tests share."""

import os
from pathlib import Path

import pytest

from woolly import store
from woolly.errors import StoreError


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Path of the real default model, pulled once into the user's cache.

    Where it cannot be had, tests that need it are skipped with the reason; with CI=true they fail.
    """
    try:
        return store.pull("smollm2")
    except StoreError as error:
        reason = f"the real model cannot be had: {error}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
