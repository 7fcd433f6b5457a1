"""Items of OpenAI's responses, read as messages."""

import pytest

from woolly.serving.dialects.responses.items import read_items
from woolly.serving.errors import ApiError


@pytest.mark.parametrize("name", ["summary", "content"])
@pytest.mark.parametrize("value", [True, 5, 0.5, 2**64, "text", {"type": "summary_text", "text": "x"}, 0, False, ""])
def test_malformed_reasoning_item_is_rejected_by_name(name, value):
    items = [{"role": "user", "content": "a"}, {"type": "reasoning", "id": "r", name: value}]
    with pytest.raises(ApiError, match="expected a list of parts") as refused:
        read_items(items)
    assert refused.value.status == 400 and refused.value.param == f"input.1.{name}"


def test_reasoning_is_its_content_or_its_summary():
    summary = [{"type": "summary_text", "text": "short"}]
    for given, shown in (([{"type": "reasoning_text", "text": "long"}], "long"), ([], "short"), (None, "short")):
        (message,) = read_items([{"type": "reasoning", "summary": summary, "content": given}])
        assert message.reasoning == shown
