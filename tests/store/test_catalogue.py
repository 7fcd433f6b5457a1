"""The catalogue as data: what ships is complete, and a line that does not parse is an error that names it."""

import json
import os
from pathlib import Path

import pytest

from woolly.errors import StoreError
from woolly.models import architectures
from woolly.store import all_families, find_in_catalogue, read_catalogue
from woolly.store.catalogue import families
from woolly.store.catalogue.families import parse_catalogue, pulled_catalogue

SHIPPED = Path(families.__file__).with_name("catalogue.json")
THIS_YEAR = """qwen3.5 qwen3.5:4b qwen3.6 qwen3.6:27b qwen3.8 gemma4 gemma4:e2b glm-4.7 glm-4.7-flash glm-5 nemotron3
    kimi-k2 deepseek-v3 deepseek-v3.1 deepseek-v3.2 deepseek-v4 lfm2.5 minimax-m2 granite4 granite4.1 gpt-oss
    ministral3"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("WOOLLY_HOME", str(tmp_path))
    return tmp_path


def changed(**fields):
    return {**json.loads(SHIPPED.read_text()), **fields}


def one(**entry):
    tag = {
        "repo": "org/repo",
        "quant": "Q4_K_M",
        "architecture": "llama",
        "parameters": 10,
        "size": 6,
        "licence": "MIT",
    }
    families = {"wool": {"kind": "chat", "tags": {"1b": {"licence": "MIT", **tag, **entry}}}}
    return changed(families=families, suggested=["wool:1b"])


@pytest.mark.parametrize("name", THIS_YEAR.split())
def test_recent_families_are_known(name):
    named = find_in_catalogue(name)
    assert named.size.n_bytes > 0 and named.size.n_parameters > 0 and named.licence and named.architecture


def test_every_architecture_has_a_name_or_a_reason():
    catalogue = read_catalogue()
    named = {tag.architecture for family in catalogue.families.values() for tag in family.tags.values()}
    assert set(architectures()) - named == set(catalogue.nameless)
    # Most of those of the first years were converted by many people and settled nowhere.
    assert all(catalogue.nameless.values()) and len(catalogue.nameless) < len(architectures()) * 0.35


def test_sizes_agree_with_parameters_and_bits():
    bits = {"Q4_K_M": (4.3, 6.6), "Q4_K": (4.3, 5.5), "MXFP4": (4.2, 5), "Q8_0": (8, 9.5), "F16": (15.5, 17)}
    for name, family in all_families().items():
        for tag, entry in family.tags.items():
            low, high = bits[entry.quant]
            used = entry.n_bytes * 8 / entry.n_parameters
            # Small Qwen2.5 and Falcon have tables of their vocabulary twice.
            assert low <= used <= high + 2.5 * (entry.n_parameters < 2e9), f"{name}:{tag} has {used:.1f} bits"


def test_suggestions_are_small_and_supported():
    for name in read_catalogue().suggested:
        named = find_in_catalogue(name)
        assert named.architecture in architectures() and named.size.n_bytes < 6e9 and not named.size.is_estimated


def test_sizes_are_shown_with_known_details():
    assert find_in_catalogue("qwen3.5:4b").size.gigabytes == "2.7 GB"
    assert find_in_catalogue("gemma4:e2b").size.gigabytes == "~3.1 GB"
    assert find_in_catalogue("all-minilm").size.gigabytes == "~0.03 GB"
    assert find_in_catalogue("deepseek-v3").size.gigabytes == "~404 GB"
    assert find_in_catalogue("qwen3.5:4b-q8_0").size is None


def test_newer_catalogue_in_the_home_is_used(home):
    assert "wool" not in all_families()
    pulled_catalogue().write_text(json.dumps({**one(), "updated": "2099-01-01"}))
    assert list(all_families()) == ["wool"] and find_in_catalogue("wool").hub.repo == "org/repo"


@pytest.mark.parametrize("text", ["{", json.dumps(one(size=-1)), json.dumps({**one(), "updated": "2020-01-01"})])
def test_damaged_or_older_catalogue_is_ignored(home, text):
    pulled_catalogue().write_text(text)
    os.utime(pulled_catalogue(), ns=(1, hash(text) % 10**9))
    assert "qwen3.5" in all_families() and "wool" not in all_families()


@pytest.mark.parametrize(
    "entry",
    [
        {"repo": "../x"},
        {"repo": "org/.."},
        {"repo": "https://example.com/x"},
        {"quant": "q4 k"},
        {"licence": ""},
        {"licence": "\x1b[2J"},
        {"size": 0},
        {"size": "6"},
        {"parameters": True},
        {"active": 11},
    ],
)
def test_invalid_entry_is_named(entry):
    with pytest.raises(StoreError, match=r"the catalogue's entry 'wool:1b' has an invalid value"):
        parse_catalogue(json.dumps(one(**entry)).encode())


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (changed(format=2), "has the format 2, not 1; it needs another version of Woolly"),
        (changed(updated="soon"), "is not a date such as"),
        (changed(suggested=["wool:1b"]), "suggests wool:1b, which it does not have"),
        (changed(families={"Wool !": {"kind": "chat", "tags": {}}}), "needs a plain name, a kind and tags"),
        (changed(families=[]), "cannot be read"),
        ([], "cannot be read"),
        ({}, "cannot be read"),
    ],
)
def test_invalid_catalogue_says_why(found, says):
    with pytest.raises(StoreError, match=says):
        parse_catalogue(json.dumps(found).encode())
