"""Names of Ollama's library: each is known, or rejected with the reason."""

import pytest

from tests.cases.ollama_names import OLLAMA_NAMES
from woolly.errors import StoreError
from woolly.models import architectures
from woolly.store import all_families, find_in_catalogue, is_in_catalogue, is_model_name


def _is_known(name):
    try:
        return is_in_catalogue(name)
    except StoreError as error:
        assert "is not available: " in str(error) or "runs only in Ollama's cloud" in str(error)
        return None


def test_every_name_is_known_or_rejected_with_the_reason():
    found = {name: _is_known(name) for name in OLLAMA_NAMES}
    assert [name for name, known in found.items() if known is False] == []
    assert sum(known is True for known in found.values()) >= 395 and len(found) >= 440
    assert all(is_model_name(name) for name, known in found.items() if known)


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("qwen3:30b-a3b", "qwen3:30b"),
        ("Qwen3-30B-A3B", "qwen3:30b"),
        ("qwen3:30b-a3b-instruct-2507", "qwen3:30b-2507"),
        ("qwen3.6:35b-a3b", "qwen3.6:35b"),
        ("gemma3:27b-it-qat", "gemma3:27b"),
        ("gemma-3-4b-it", "gemma3:4b"),
        ("ministral-3", "ministral3:8b"),
        ("devstral-small-2:24b", "devstral2:24b"),
        ("nemotron-3-nano:30b", "nemotron3:30b"),
        ("qwen2.5vl:7b", "qwen2.5-vl:7b"),
        ("Qwen2.5-VL-7B-Instruct", "qwen2.5-vl:7b"),
        ("qwen3-4b-q8_0", "qwen3:4b-q8_0"),
        ("phi3:mini", "phi3:3.8b"),
        ("kimi-k2-thinking", "kimi-k2:thinking"),
        ("step-3.5-flash", "step3.5-flash:196b"),
    ],
)
def test_spellings_aliases_and_active_sizes(typed, name):
    assert find_in_catalogue(typed).name == name


@pytest.mark.parametrize("text", ["Mistral?", "qwen 3", "hello", "llama", "a:b", "and/or", "x" * 5000])
def test_other_texts_are_no_names(text):
    assert find_in_catalogue(text) is None


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("llama3.2-vision:11b", "llama3.2-vision:11b is not available: its architecture mllama is not supported"),
        ("gpt-oss:20b-cloud", "gpt-oss:20b-cloud runs only in Ollama's cloud; gpt-oss:20b may run here"),
        ("kimi-k3", "its architecture kimi-k3 is not supported yet"),
    ],
)
def test_unavailable_names_have_a_reason(typed, says):
    with pytest.raises(StoreError, match=says):
        find_in_catalogue(typed)


def test_every_row_has_an_architecture_that_runs():
    runs = set(architectures())
    rows = [
        (name, tag, row.architecture) for name, family in all_families().items() for tag, row in family.tags.items()
    ]
    assert [row for row in rows if row[2] not in runs] == []


NAMED = """llava minicpm-v smolvlm2 internvl3 pixtral glm-ocr dots.ocr lightonocr voxtral ultravox qwen2.5-omni
    qwen3-omni qwen3-asr snowflake-arctic-embed whisper:large-v3"""


@pytest.mark.parametrize("name", NAMED.split())
def test_families_that_see_or_hear_have_names(name):
    assert find_in_catalogue(name) is not None
