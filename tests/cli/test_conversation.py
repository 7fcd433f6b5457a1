"""Saved conversations: older keys, and files that are not conversations."""

import json

import pytest

from woolly import SamplingParams
from woolly.cli.chat.conversation import Conversation
from woolly.errors import RequestError


def test_saved_key_sounds_is_read_as_audio(tmp_path):
    saved = [{"role": "user", "content": "What is said?", "sounds": ["talk.wav"]}]
    (tmp_path / "x.json").write_text(json.dumps({"messages": saved}))
    conversation = Conversation(SamplingParams())
    conversation.load(tmp_path / "x.json")
    assert conversation.messages == [{"role": "user", "content": "What is said?", "audio": ["talk.wav"]}]
    (tmp_path / "x.json").write_text(json.dumps({"messages": [saved[0] | {"sounds": "talk.wav"}]}))
    with pytest.raises(RequestError, match="is not a conversation"):
        conversation.load(tmp_path / "x.json")


def test_file_that_is_not_a_conversation_is_rejected(tmp_path):
    conversation = Conversation(SamplingParams())
    for text in ("[1]", "3", '{"messages": 1}', '{"messages": [{"role": "user"}]}', "{"):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(RequestError, match=r"is not a conversation|is not JSON"):
            conversation.load(tmp_path / "x.json")
