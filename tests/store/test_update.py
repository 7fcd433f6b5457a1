"""A later catalogue is taken with the right SHA-256 alone; the one that is here stays otherwise."""

import hashlib
import json

import pytest
from click.testing import CliRunner

from tests.store.test_catalogue import one
from tests.store.test_hub import hub
from woolly.cli.app import app
from woolly.errors import StoreError
from woolly.store import all_families
from woolly.store.catalogue.families import pulled_catalogue
from woolly.store.catalogue.update import find_catalogue, install_catalogue

__all__ = ["hub"]

LATER = json.dumps({**one(), "updated": "2099-01-01"}).encode()
DIGEST = hashlib.sha256(LATER).hexdigest()


@pytest.fixture
def served(hub, tmp_path, monkeypatch):
    """The address of a file of the hub; the function given takes its bytes."""
    monkeypatch.setenv("WOOLLY_HOME", str(tmp_path / "home"))

    def serve(data):
        hub.repos["woolly-llm/catalogue"] = {"catalogue.json": data}
        return f"{hub.url}/cdn/woolly-llm/catalogue/catalogue.json"

    return serve


def pulled(*arguments):
    return CliRunner().invoke(app, ["pull", "--catalogue", *arguments])


def test_without_a_digest_the_catalogue_is_shown_and_not_installed(served):
    address = served(LATER)
    result = pulled(address)
    assert result.exit_code == 0 and f"woolly pull --catalogue {address} --sha256 {DIGEST}" in result.stderr
    assert "of 2099-01-01 with 1 family" in result.stderr and not pulled_catalogue().exists()


def test_with_the_right_digest_it_is_installed(served):
    result = pulled(served(LATER), "--sha256", DIGEST.upper())
    assert (result.exit_code, result.stdout) == (0, f"{pulled_catalogue()}\n")
    assert list(all_families()) == ["wool"]


def test_with_a_wrong_digest_the_current_one_stays(served):
    address = served(LATER)
    install_catalogue(find_catalogue(address), DIGEST)
    other = LATER.replace(b"org/repo", b"bad/repo")
    address = served(other)
    error = pulled(address, "--sha256", DIGEST).exception
    assert isinstance(error, StoreError) and str(error).endswith(f"not {DIGEST}; the current catalogue is unchanged")
    assert pulled_catalogue().read_bytes() == LATER
    assert all_families()["wool"].tags["1b"].repo == "org/repo"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"{", "cannot be read"),
        (
            json.dumps({**one(), "updated": "2020-01-01"}).encode(),
            "is of 2020-01-01, older than the current catalogue of",
        ),
        (json.dumps(one(size=0)).encode(), "has an invalid value"),
        (b" " * (4 << 20) + b"{}", "the maximum for a catalogue"),
    ],
)
def test_invalid_catalogue_is_not_installed(served, data, says):
    address = served(data)
    error = pulled(address, "--sha256", hashlib.sha256(data).hexdigest()).exception
    assert isinstance(error, StoreError) and says in str(error) and not pulled_catalogue().exists()


def test_official_catalogue_is_fetched_from_the_hub(served, hub, monkeypatch):
    served(LATER)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    error = pulled().exception  # this hub knows no branches
    assert isinstance(error, StoreError) and "woolly-llm/catalogue/resolve/main/catalogue.json" in str(error)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    error = pulled().exception
    assert str(error).startswith("cannot reach 127.0.0.1:9 for the catalogue (Connection refused)")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["qwen3:4b"], "expected an https:// address"), (["--sha256", "12"], "64 hexadecimal digits")],
)
def test_mistyped_call_gives_a_one_line_error(served, arguments, says):
    assert says in str(pulled(*arguments).exception)
