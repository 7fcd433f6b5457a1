"""Names that clients have built in for models of cloud providers."""

import pytest

from woolly.serving.model_manager.cloud_names import is_cloud_name
from woolly.store import catalogue_names

CLOUD = """gpt-3.5-turbo gpt-4 gpt-4o-mini gpt-5.1-codex chatgpt-4o-latest o3 o4-mini codex-mini-latest whisper-1
    text-embedding-3-small text-embedding-ada-002 claude-3-5-haiku-20241022 claude-opus-4-5 sonnet gemini-2.5-flash
    models/gemini-2.0-flash openai/gpt-4.1 anthropic/claude-sonnet-4 gpt-4:latest embed-english-v3.0 rerank-v3.5
    mistral-large-latest deepseek-chat grok-4 coder-model qwen3-coder-plus default local-model"""

OPEN = """gpt-oss:20b gpt-oss-120b gpt-j gpt-neox gpt2 gpt-2 llama3 qwen3:4b deepseek-r1 command-r mistral-small
    text-embedding-nomic-embed-text-v1.5 text-embedding-bge-m3 gpt-4all-falcon
    codestral grok nosuchmodel o one tiny embeddinggemma models"""


@pytest.mark.parametrize("name", CLOUD.split())
def test_names_of_clouds(name):
    assert is_cloud_name(name)


@pytest.mark.parametrize("name", OPEN.split())
def test_names_of_open_models(name):
    assert not is_cloud_name(name)


def test_no_name_of_the_catalogue_is_a_name_of_a_cloud():
    assert [name for name in catalogue_names() if is_cloud_name(name)] == []
