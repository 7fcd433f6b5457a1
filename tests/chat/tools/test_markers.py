"""Marks that are control tokens are seen by parsers; other control tokens stay hidden."""

import numpy as np
import pytest

from tests.cases.tiny import byte_vocabulary
from woolly.chat.tools.format import FORMATS
from woolly.chat.tools.markers import marker_ids, markers_of
from woolly.tokens import StreamDetokenizer, Tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    vocabulary = byte_vocabulary()
    tokens, types = list(vocabulary["tokenizer.ggml.tokens"]), list(vocabulary["tokenizer.ggml.token_type"])
    tokens += ["[TOOL_CALLS]", "[ARGS]", "<tool_call>"]
    types += [3, 3, 4]
    vocabulary |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": np.asarray(types, np.int32)}
    return Tokenizer.from_metadata(vocabulary)


def test_control_tokens_among_the_markers_are_found(tokenizer):
    named = marker_ids(tokenizer, markers_of(FORMATS["mistral_named"]))
    assert {tokenizer.token_text(token) for token in named} == {"[TOOL_CALLS]", "[ARGS]"}
    assert marker_ids(tokenizer, markers_of(FORMATS["hermes"])) == frozenset()


def test_markers_are_shown_and_other_control_tokens_are_not(tokenizer):
    shown = marker_ids(tokenizer, markers_of(FORMATS["mistral_named"]))
    detokenizer = StreamDetokenizer(tokenizer, strip_prefix=False, shown=shown)
    ids = tokenizer.encode("<|im_start|>[TOOL_CALLS]f[ARGS]{é}<tool_call>", add_special=False)
    assert "".join(map(detokenizer.push, ids)) + detokenizer.finish() == "[TOOL_CALLS]f[ARGS]{é}<tool_call>"
